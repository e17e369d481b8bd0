#include "services/engine_proxy/image_flags.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/flags/flag.h"
#include "lib/base/error.h"
#include "lib/program/program.h"
#include "lib/program/ucx_flags.h"
#include "lib/transfer/ucx/transports.h"
#include "services/engine_proxy/relay_port.h"

ABSL_FLAG(std::string, image_dir, "",
          "memory-backed directory of adapter images, at the same path for the engine; where it is "
          "another user's, as a mounted volume, a directory of the member's name in it; default: "
          "/dev/shm/lorry-<uid>/<member>");
ABSL_FLAG(bool, image_dir_shared, false,
          "the nodes of an engine that runs on several all see --image-dir, as a network file "
          "system, and need no --followers");
ABSL_FLAG(
    std::string, host_cache, "auto",
    "directory of images that the engine-proxies of this user on this host share, so that each "
    "is fetched once; on the file system of --image-dir; off: none; auto: "
    "/dev/shm/lorry-<uid>/.images where --image-dir is not given, otherwise off");
ABSL_FLAG(std::string, image_readers, "owner",
          "who may read images besides this user, as an engine may run as another one: owner, all, "
          "or a group by name or number");
ABSL_FLAG(bool, read_ahead, true,
          "read a version's image while its trainer still sends it, where images come by gRPC");
ABSL_FLAG(bool, fetch_deltas, false,
          "ask the store for what has changed since the adapter's last version that lies here, "
          "compressed, where images come by gRPC: a third to two thirds of the bytes, for links "
          "below 2 Gbit/s; costs the store and this proxy some 3 ms of CPU a MB");

namespace lorry::proxy {

absl::StatusOr<std::unique_ptr<ImageShelf>> OpenShelf(const std::string& member,
                                                      const JournalId& journal) {
  LORRY_ASSIGN_OR_RETURN(const ImageReaders readers,
                         ParseImageReaders(absl::GetFlag(FLAGS_image_readers)));
  const std::string image_dir = absl::GetFlag(FLAGS_image_dir);
  if (image_dir.empty())
    LORRY_RETURN_IF_ERROR(MakePrivateDirectory(SharedMemoryDirectory(), readers));
  return ImageShelf::Open(ImageRoot(image_dir, member), journal, readers,
                          HostCacheRoot(absl::GetFlag(FLAGS_host_cache), image_dir));
}

std::unique_ptr<transfer::TransportSet> MakeTransports() {
  const auto devices = program::UcxDevices();
  program::WarnOfOpenMemory(devices);
  const auto dial = [](const std::string& target) {
    const auto channel = program::Dial(target, {});
    if (!channel.ok()) spdlog::warn("{}", std::string(channel.status().message()));
    return channel.ok() ? (*channel)->Get() : nullptr;
  };
  return transfer::CreateTransports(
      {.shared_memory = program::UcxOn(),
       .devices = devices,
       .relays = Relays() ? std::make_shared<transfer::Channels>(DialRelay) : nullptr,
       .on_missing =
           [](std::string_view name, const absl::Status& why) {
             spdlog::warn("no {}, fetching without: {}", name, std::string(why.message()));
           }},
      std::make_shared<transfer::Channels>(dial));
}

std::unique_ptr<ReadAhead> OpenReadAhead(ImageShelf& shelf, transfer::TransportSet& transports,
                                         LastImages* last) {
  transfer::Transport* const grpc = transports.Find("grpc");
  if (!absl::GetFlag(FLAGS_read_ahead) || grpc == nullptr) return nullptr;
  return std::make_unique<ReadAhead>(shelf, *grpc, last);
}

std::unique_ptr<LastImages> OpenLastImages(ImageShelf& shelf, ManifestSource source) {
  if (!absl::GetFlag(FLAGS_fetch_deltas)) return nullptr;
  return std::make_unique<LastImages>(shelf, std::move(source));
}

}  // namespace lorry::proxy
