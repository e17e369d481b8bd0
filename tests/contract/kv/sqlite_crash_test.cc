// What only a file can suffer: crashes, full disks, rot, two processes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "lib/base/error.h"
#include "lib/base/prng.h"
#include "lib/kv/sqlite/connection.h"
#include "lib/kv/sqlite/sqlite_store.h"
#include "tests/testing/failing_call.h"
#include "tests/testing/temp_dir.h"

namespace lorry::kv {
namespace {

std::unique_ptr<Store> Open(const std::string& path) {
  auto store = OpenSqliteStore({.path = path});
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// Commits pairs that must stay equal and writes the number of each commit that returned to `told`.
[[noreturn]] void CommitForEver(const std::string& path, int told) {
  auto store = Open(path);
  uint64_t number = (*store->TakeSnapshot())->revision();
  while (true) {
    const std::string value = std::to_string(number + 1) + std::string(number % 7 * 1000, '.');
    number = *store->Commit(Transaction().Put("left", value).Put("right", value));
    if (write(told, &number, sizeof(number)) != sizeof(number)) _exit(1);
  }
}

TEST(SqliteCrash, KilledAtAnyMomentItLosesNothingThatReturned) {
  const TempDir dir;
  const std::string path = dir / "kv.db";
  Prng prng(20261121);
  uint64_t returned = 0;
  for (int round = 0; round < 40; ++round) {
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t child = fork();
    if (child == 0) CommitForEver(path, told[1]);
    close(told[1]);
    // Let it commit a few times, then kill it wherever it is.
    const uint64_t target = returned + 1 + prng.Below(5);
    uint64_t number = 0;
    while (number < target && read(told[0], &number, sizeof(number)) == sizeof(number))
      returned = number;
    // tidy: allow sleep: no synchronisation, a random instant to kill at
    usleep(static_cast<useconds_t>(
        prng.Below(1'500)));  // not a synchronisation: a random instant to kill at
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    while (read(told[0], &number, sizeof(number)) == sizeof(number)) returned = number;
    close(told[0]);

    const auto store = Open(path);
    ASSERT_NE(store, nullptr);
    const auto snapshot = *store->TakeSnapshot();
    EXPECT_GE(snapshot->revision(), returned);
    EXPECT_LE(snapshot->revision(), returned + 1) << "at most the one that was under way";
    EXPECT_EQ((*snapshot->Get("left"))->value, (*snapshot->Get("right"))->value);
    EXPECT_EQ((*snapshot->Get("left"))->revision, snapshot->revision());
    returned = snapshot->revision();
  }
}

TEST(SqliteLock, ASecondOpenerIsRefusedUntilTheFirstEnds) {
  const TempDir dir;
  auto first = Open(dir / "kv.db");
  const auto second = OpenSqliteStore({.path = dir / "kv.db"});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(second.status()), "ALREADY_LOCKED");
  first.reset();
  EXPECT_TRUE(OpenSqliteStore({.path = dir / "kv.db"}).ok());
}

TEST(SqliteFull, ALimitThatIsReachedLosesNothingAndDeletesMakeRoom) {
  const TempDir dir;
  auto store = *OpenSqliteStore({.path = dir / "kv.db", .bytes_max = 256 << 10});
  int stored = 0;
  absl::Status status;
  while (stored < 1'000) {
    status =
        store->Commit(Transaction().Put("k" + std::to_string(stored), std::string(10'000, 'x')))
            .status();
    if (!status.ok()) break;
    ++stored;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "DISK_FULL");
  EXPECT_EQ(ListAll(*store, "k")->size(), static_cast<size_t>(stored));
  EXPECT_TRUE(store->Commit(Transaction().Delete("k0").Delete("k1")).ok());
  EXPECT_TRUE(store->Commit(Transaction().Put("small", "x")).ok());
  store.reset();
  EXPECT_EQ(ListAll(*Open(dir / "kv.db"), "k")->size(), static_cast<size_t>(stored) - 2);
}

// In a child, so that the mount goes with its namespace.
int FillSmallDisk(const std::string& mount_point) {
  if (unshare(CLONE_NEWNS) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=1m") != 0) {
    return 77;
  }
  const std::string path = mount_point + "/kv.db";
  auto store = Open(path);
  // A start that finds no room for the index of the log, which goes with the last that used it.
  store.reset();
  const std::string theirs = mount_point + "/theirs";
  std::ofstream(theirs) << std::string(1 << 20, 'x');
  if (ReasonOf(OpenSqliteStore({.path = path}).status()) != "DISK_FULL") return 5;
  unlink(theirs.c_str());
  store = Open(path);
  int stored = 0;
  absl::Status status;
  while (true) {
    status =
        store->Commit(Transaction().Put("k" + std::to_string(stored), std::string(20'000, 'x')))
            .status();
    if (!status.ok()) break;
    ++stored;
  }
  if (ReasonOf(status) != "DISK_FULL") return 1;
  if (ListAll(*store, "k")->size() != static_cast<size_t>(stored)) return 2;
  store.reset();
  store = Open(path);
  if (store == nullptr) return 3;
  return ListAll(*store, "k")->size() == static_cast<size_t>(stored) ? 0 : 4;
}

TEST(SqliteFull, AFullFileSystemLosesNothingAndCanBeOpenedAgain) {
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

// A thread of its own, as what it may call is taken from it for good.
absl::Status CommitWhere(Store& store, const FailingCall& call, const std::string& key) {
  absl::Status status = absl::UnimplementedError("no seccomp here");
  std::thread([&] {
    if (!FailCalls({call})) return;
    for (int more = 0; more < 1'000 && (status.ok() || absl::IsUnimplemented(status)); ++more)
      status = store.Commit(Transaction().Put(key, std::string(40'000, 'x'))).status();
  }).join();
  return status;
}

TEST(SqliteFull, AQuotaThatIsUsedUpIsAFullDiskAndMayEnd) {
  const TempDir dir;
  auto store = Open(dir / "kv.db");
  ASSERT_TRUE(store->Commit(Transaction().Put("before", "x")).ok());
  const absl::Status status =
      CommitWhere(*store, {.number = SYS_pwrite64, .error = EDQUOT}, "refused");
  if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
  EXPECT_EQ(ReasonOf(status), "DISK_FULL") << status;
  EXPECT_TRUE(store->Commit(Transaction().Put("after", "x")).ok());
  store.reset();
  EXPECT_EQ(ListAll(*Open(dir / "kv.db"), "")->size(), 2u);
}

// The index of a long log grows after the commit is in that log.
TEST(SqliteFull, ACommitWhoseIndexFindsNoRoomMayLast) {
  const TempDir dir;
  const auto store = Open(dir / "kv.db");
  const auto keeps_the_log = store->TakeSnapshot();
  const FailingCall grow_index{
      .number = SYS_pwrite64, .error = ENOSPC, .argument = 2, .value = 1};  // by one byte
  const absl::Status status = CommitWhere(*store, grow_index, "k");
  if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
  EXPECT_EQ(ReasonOf(status), "STORE_FAILED") << status;
  EXPECT_EQ(store->Commit(Transaction().Put("after", "x")).status(), status);
}

TEST(SqliteRot, AFileThatIsNotADatabaseIsDataLoss) {
  const TempDir dir;
  std::ofstream(dir / "kv.db") << std::string(8192, 'z');
  const auto store = OpenSqliteStore({.path = dir / "kv.db"});
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(store.status()), "DATABASE_CORRUPT");
}

TEST(SqliteRot, ADamagedPageIsFoundWhenOpening) {
  const TempDir dir;
  {
    auto store = Open(dir / "kv.db");
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(
          store->Commit(Transaction().Put("k" + std::to_string(i), std::string(3'000, 'x'))).ok());
    }
  }
  {
    std::fstream file(dir / "kv.db", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 * 5);
    file << std::string(4096, '\xee');
  }
  const auto store = OpenSqliteStore({.path = dir / "kv.db"});
  EXPECT_EQ(ReasonOf(store.status()), "DATABASE_CORRUPT") << store.status();
}

TEST(SqliteOpen, RefusesADirectoryThatIsNotThere) {
  const TempDir dir;
  EXPECT_EQ(OpenSqliteStore({.path = dir / "none/kv.db"}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(SqliteOpen, RefusesAnotherProgramsDatabase) {
  const TempDir dir;
  ASSERT_TRUE((*Connection::Open(dir / "kv.db"))->Execute("CREATE TABLE theirs (x)").ok());
  EXPECT_EQ(OpenSqliteStore({.path = dir / "kv.db"}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(SqliteFiles, AreNobodyElsesToRead) {
  const TempDir dir;
  const std::string path = dir / "kv.db";
  std::ofstream(path).close();
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);  // as an older program made it
  const auto store = Open(path);
  ASSERT_TRUE(store->Commit(Transaction().Put("a", "b")).ok());
  for (const char* name : {"kv.db", "kv.db-wal", "kv.db-shm", "kv.db.lock"}) {
    struct stat info {};
    ASSERT_EQ(stat((dir / name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << name;
  }
}

TEST(SqliteFiles, OfAnotherUserAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const TempDir dir;
  const std::string path = dir / "kv.db";
  std::ofstream(path).close();
  ASSERT_EQ(chown(path.c_str(), 65532, 65532), 0);
  EXPECT_EQ(ReasonOf(OpenSqliteStore({.path = path}).status()), "DATA_DIR_UNUSABLE");
}

}  // namespace
}  // namespace lorry::kv
