#include "lib/transfer/ucx/host_proof.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/transfer/ucx/handshake.h"
#include "lib/transfer/ucx/ucx_transport.h"

namespace lorry::transfer::ucx {
namespace {

TEST(HostSecret, IsReadByItsOwnUser) {
  const auto secret = HostSecret::Create();
  ASSERT_TRUE(secret.ok());
  const auto read = ReadHostSecret((*secret)->pid(), (*secret)->fd());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, (*secret)->text());
  EXPECT_EQ(read->size(), 32u);
}

TEST(HostSecret, OtherFilesAreNotTakenForOne) {
  const auto refused = [](int fd) {
    const auto read = ReadHostSecret(static_cast<uint32_t>(getpid()), static_cast<uint32_t>(fd));
    close(fd);
    return absl::IsUnavailable(read.status());
  };
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_TRUE(refused(ends[0]));  // and does not wait for a writer
  close(ends[1]);
  EXPECT_TRUE(refused(open("/dev/zero", O_RDONLY)));

  const std::string text(32, 's');
  const auto file = [&](mode_t mode, int seals) {
    const int fd = memfd_create("test", MFD_ALLOW_SEALING);
    EXPECT_EQ(write(fd, text.data(), text.size()), 32);
    EXPECT_EQ(fchmod(fd, mode), 0);
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
  };
  const int all = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  EXPECT_FALSE(refused(file(0600, all)));
  EXPECT_TRUE(refused(file(0640, all)));
  EXPECT_TRUE(refused(file(0600, all & ~F_SEAL_WRITE)));
  EXPECT_TRUE(absl::IsUnavailable(ReadHostSecret(0, 0).status()));
}

TEST(Handshake, BelievesWhatIsSignedForThisSessionOnly) {
  const Handshake ours{.secret = "secret", .client_nonce = "one", .server_nonce = "two"};
  const auto signed_address = ours.Signed(kClientSide, "address");
  EXPECT_TRUE(ours.Check(kClientSide, signed_address).ok());
  // The other side's own words sent back to it.
  EXPECT_EQ(ReasonOf(ours.Check(kServerSide, signed_address)), "LANE_UNAVAILABLE");
  Handshake replayed = ours;
  replayed.server_nonce = "another";
  EXPECT_FALSE(replayed.Check(kClientSide, signed_address).ok());
  Handshake stranger = ours;
  stranger.secret = "guess";
  EXPECT_FALSE(stranger.Check(kClientSide, signed_address).ok());
  auto altered = signed_address;
  altered.set_address("addresses");
  EXPECT_FALSE(ours.Check(kClientSide, altered).ok());
  Handshake nothing = ours;
  nothing.secret.clear();
  EXPECT_FALSE(nothing.Check(kClientSide, nothing.Signed(kClientSide, "address")).ok());
}

TEST(Handshake, NeedsTheSameUcx) {
  EXPECT_TRUE(CheckSameUcx(UcxVersion()).ok());
  EXPECT_EQ(ReasonOf(CheckSameUcx("UCX 0.9.1")), "LANE_UNAVAILABLE");
  EXPECT_FALSE(CheckSameUcx("").ok());
}

}  // namespace
}  // namespace lorry::transfer::ucx
