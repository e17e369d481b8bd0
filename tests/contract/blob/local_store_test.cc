// What only a directory can suffer: crashes, two processes, other files, a full file system.
#include "lib/blob/local_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "lib/base/error.h"
#include "lib/base/prng.h"
#include "lib/blob/failing_store.h"
#include "lib/blob/file.h"
#include "lib/blob/memory_store.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/temp_dir.h"

namespace lorry::blob {
namespace {

constexpr uint64_t kBytes = 50'000;

std::unique_ptr<Store> Open(const std::string& root) {
  auto store = OpenLocalStore({.root = root});
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// Stores k0, k1, ... and writes each number to `told` once Seal has returned.
[[noreturn]] void StoreForEver(const std::string& root, int first, int told) {
  const auto store = Open(root);
  for (int number = first;; ++number) {
    const auto staging = *store->Create("k" + std::to_string(number), kBytes);
    std::memset(staging->bytes().data(), 'a' + number % 26, kBytes);
    if (!staging->Seal().ok() || write(told, &number, sizeof(number)) != sizeof(number)) _exit(1);
  }
}

TEST(LocalCrash, KilledAtAnyMomentEveryBlobIsWholeOrAStaging) {
  const TempDir dir;
  Prng prng(20261121);
  int next = 0;
  for (int round = 0; round < 30; ++round) {
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t child = fork();
    if (child == 0) StoreForEver(dir / "blobs", next, told[1]);
    close(told[1]);
    int number = -1, returned = next - 1;
    while (returned < next && read(told[0], &number, sizeof(number)) == sizeof(number))
      returned = number;
    // tidy: allow sleep: no synchronisation, a random instant to kill at
    usleep(static_cast<useconds_t>(
        prng.Below(2'000)));  // not a synchronisation: a random instant to kill at
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    while (read(told[0], &number, sizeof(number)) == sizeof(number)) returned = number;
    close(told[0]);

    const auto store = Open(dir / "blobs");
    ASSERT_NE(store, nullptr);
    for (int i = next; i <= returned; ++i) {
      const auto mapping = store->Open("k" + std::to_string(i));
      ASSERT_TRUE(mapping.ok()) << mapping.status();
      ASSERT_EQ((*mapping)->bytes().size(), kBytes);
      EXPECT_EQ((*mapping)->bytes().back(), static_cast<std::byte>('a' + i % 26));
    }
    int leftovers = 0;
    const std::vector<BlobInfo> blobs = *store->List();
    for (const BlobInfo& blob : blobs) {
      EXPECT_EQ(blob.bytes, kBytes) << blob.key;
      if (blob.state != BlobState::kStaging) continue;
      ++leftovers;
      EXPECT_TRUE(store->Delete(blob.key).ok());
    }
    EXPECT_LE(leftovers, 1);
    next = returned + 2;  // one more may have been sealed without being told
  }
}

TEST(LocalStore, StagingsSurviveTheProcess) {
  const TempDir dir;
  {
    const auto store = Open(dir / "blobs");
    const auto staging = *store->Create("a", 5);
    std::memcpy(staging->bytes().data(), "hello", 5);
    EXPECT_TRUE(staging->Sync().ok());
  }
  const auto store = Open(dir / "blobs");
  const auto staging = *store->Resume("a");
  EXPECT_EQ(std::memcmp(staging->bytes().data(), "hello", 5), 0);
  EXPECT_TRUE(staging->Seal().ok());
}

// In a child that is not root, as containers run: root may write any file. Returns what went wrong.
int GoOnAfterASealThatFailed(const std::string& root) {
  if (geteuid() == 0 && (setgid(65532) != 0 || setuid(65532) != 0)) return 77;
  const auto store = OpenLocalStore({.root = root});
  if (!store.ok()) return 1;
  {
    const auto staging = *(*store)->Create("a", 5);
    std::memcpy(staging->bytes().data(), "hello", 5);
    // Something in the way of the rename, so that Seal ends where a crash might: before it.
    std::ofstream(root + "/sealed/a") << "x";
    if (staging->Seal().ok()) return 2;
    if (unlink((root + "/sealed/a").c_str()) != 0) return 3;
  }
  const auto staging = (*store)->Resume("a");
  if (!staging.ok()) return 4;
  if (!(*staging)->Seal().ok()) return 5;
  struct stat info {};
  if (stat((root + "/sealed/a").c_str(), &info) != 0) return 6;
  return (info.st_mode & 0777) == 0400 ? 0 : 7;
}

TEST(LocalStore, ASealThatWasCutShortCanBeGoneOnWithByAUserWhoIsNotRoot) {
  const TempDir dir;
  ASSERT_EQ(chmod(dir.path().c_str(), 0777), 0);
  const pid_t child = fork();
  if (child == 0) _exit(GoOnAfterASealThatFailed(dir / "blobs"));
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "another user is needed";
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(LocalStore, OneProcessAtATime) {
  const TempDir dir;
  auto first = Open(dir / "blobs");
  EXPECT_EQ(ReasonOf(OpenLocalStore({.root = dir / "blobs"}).status()), "ALREADY_LOCKED");
  first.reset();
  EXPECT_TRUE(OpenLocalStore({.root = dir / "blobs"}).ok());
}

TEST(LocalStore, ItsParentMustExist) {
  EXPECT_TRUE(absl::IsNotFound(OpenLocalStore({.root = TempDir() / "none/blobs"}).status()));
}

TEST(LocalStore, FilesOfOthersAreLeftAlone) {
  const TempDir dir;
  const auto store = Open(dir / "blobs");
  std::ofstream(dir / "blobs/sealed/README.TXT") << "not a blob";
  EXPECT_TRUE(store->List()->empty());
}

TEST(LocalStore, AnEmptiedFileIsDataLoss) {
  const TempDir dir;
  const auto store = Open(dir / "blobs");
  std::ofstream(dir / "blobs/sealed/a");
  EXPECT_EQ(store->Open("a").status().code(), absl::StatusCode::kDataLoss);
}

TEST(MappedFile, BytesThatTheDiskDoesNotGiveAreAnErrorAndNotASignal) {
  const TempDir dir;
  const auto fd = CreateAllocated(dir / "a", 2 << 20);
  ASSERT_TRUE(fd.ok());
  const auto file = MappedFile::Map(*fd, /*writable=*/false);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->Load(0, 2 << 20).ok());
  // Pages behind the end of a file fault as those of a bad sector do.
  ASSERT_EQ(ftruncate(fd->get(), 1 << 20), 0);
  EXPECT_TRUE(file->Load(0, 1 << 20).ok());
  const absl::Status loaded = file->Load(1 << 20, 1 << 20);
  EXPECT_EQ(loaded.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(loaded), "DISK_FAILED");
}

TEST(LocalStore, KeepsSpaceFree) {
  const TempDir dir;
  const auto store = *OpenLocalStore({.root = dir / "blobs", .free_bytes_min = uint64_t{1} << 60});
  EXPECT_EQ(ReasonOf(store->Create("a", 1).status()), "DISK_FULL");
}

// In a child, so that the mount goes with its namespace.
int FillSmallDisk(const std::string& mount_point) {
  if (unshare(CLONE_NEWNS) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=1m") != 0) {
    return 77;
  }
  const auto store = Open(mount_point + "/blobs");
  int stored = 0;
  absl::Status status;
  while (true) {
    const auto staging = store->Create("k" + std::to_string(stored), 100'000);
    status = staging.status();
    if (!status.ok()) break;
    std::memset((*staging)->bytes().data(), 'x', 100'000);  // allocated: no SIGBUS
    if (!(*staging)->Seal().ok()) return 1;
    ++stored;
  }
  if (ReasonOf(status) != "DISK_FULL") return 2;
  if (store->List()->size() != static_cast<size_t>(stored)) return 3;
  if (!store->Delete("k0").ok()) return 4;
  return store->Create("again", 100'000).ok() ? 0 : 5;
}

TEST(LocalStore, AFullFileSystemIsAnErrorAndNotASignal) {
  const TempDir dir;
  const std::string mount_point = dir / "";
  const pid_t child = fork();
  if (child == 0) _exit(FillSmallDisk(mount_point));
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// NFS and older ZFS have no RENAME_NOREPLACE. In a child, which begins this program anew.
TEST(LocalStore, KeepsTheContractWhereTheFileSystemCanOnlyRename) {
  const pid_t child = fork();
  if (child == 0) {
    const FailingCall no_flag{
        .number = SYS_renameat2, .error = EINVAL, .argument = 4, .value = RENAME_NOREPLACE};
    if (!FailCalls({no_flag})) _exit(77);
    for (const char* name : {"GTEST_OUTPUT", "GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"})
      unsetenv(name);
    execl("/proc/self/exe", "contract_blob_test",
          "--gtest_filter=All/BlobContract.*/Local:LocalStore.ASealThat*:LocalStore.Stagings*",
          nullptr);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
}

TEST(FailingStore, FailsWhatItsPlanSays) {
  class SealFails final : public FailurePlan {
    absl::Status Before(BlobOp op, std::string_view) override {
      return op == BlobOp::kSeal
                 ? Error(absl::StatusCode::kUnavailable, "DISK_FAILED", "as planned")
                 : absl::OkStatus();
    }
  } plan;
  const auto inner = MakeMemoryStore();
  const auto store = MakeFailingStore(*inner, plan);
  const auto staging = *store->Create("a", 1);
  EXPECT_EQ(ReasonOf(staging->Seal()), "DISK_FAILED");
  EXPECT_TRUE(absl::IsNotFound(store->Open("a").status()));
}

}  // namespace
}  // namespace lorry::blob
