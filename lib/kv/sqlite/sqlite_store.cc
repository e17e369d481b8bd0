#include "lib/kv/sqlite/sqlite_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/file_lock.h"
#include "lib/base/mutex.h"
#include "lib/kv/sqlite/connection.h"

namespace lorry::kv {
namespace {

constexpr int64_t kPageBytes = 4096;
// Connections that wait for the next snapshot, so that taking one does not open a file.
constexpr size_t kIdleReadersMax = 4;

// "lory": another program's database is refused rather than used.
constexpr int64_t kApplicationId = 0x6c6f7279;
constexpr char kSetUp[] =
    "BEGIN IMMEDIATE;"
    "PRAGMA application_id = 0x6c6f7279;"
    "CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) "
    "WITHOUT ROWID;"
    "CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL);"
    "INSERT INTO head VALUES (1, 0);"
    "COMMIT;";

absl::StatusOr<FileLock> Lock(const std::string& path) {
  FileLock lock(path);
  if (lock.held()) return lock;
  if (lock.error() == 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "ALREADY_LOCKED",
                 absl::StrCat(path, " is locked: another process has this database open"));
  }
  const bool is_full = lock.error() == ENOSPC || lock.error() == EDQUOT;
  const auto code = lock.error() == EACCES   ? absl::StatusCode::kPermissionDenied
                    : is_full                ? absl::StatusCode::kResourceExhausted
                    : lock.error() == ENOENT ? absl::StatusCode::kNotFound
                                             : absl::StatusCode::kUnavailable;
  return Error(code, is_full ? "DISK_FULL" : "",
               absl::StrCat("locking ", path, ": ", std::strerror(lock.error())));
}

// Makes the file, or checks it, before SQLite opens it: nobody else owns it, reads it or writes it.
// SQLite gives its write-ahead log the mode of the database.
absl::Status MakePrivate(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return absl::OkStatus();  // SQLite says better what is wrong with it
  struct stat info {};
  const bool known = fstat(fd, &info) == 0;
  const bool ours = known && info.st_uid == geteuid();
  if (ours && (info.st_mode & 0077) != 0) (void)fchmod(fd, 0600);
  close(fd);
  if (ours) return absl::OkStatus();
  return Error(absl::StatusCode::kPermissionDenied, "DATA_DIR_UNUSABLE",
               absl::StrCat(path, " belongs to another user (id ", info.st_uid,
                            "), who could change it: run as that user, or give the file to this "
                            "one (id ",
                            geteuid(), ")"));
}

class SqliteStore;

class SqliteSnapshot final : public Snapshot {
 public:
  SqliteSnapshot(SqliteStore& store, std::unique_ptr<Connection> connection, uint64_t revision)
      : store_(store), connection_(std::move(connection)), revision_(revision) {}
  ~SqliteSnapshot() override;
  absl::StatusOr<std::optional<Entry>> Get(std::string_view key) override {
    return connection_->Get(key);
  }
  absl::StatusOr<std::vector<Entry>> List(const Range& range) override {
    return connection_->List(range);
  }
  uint64_t revision() const override { return revision_; }

 private:
  SqliteStore& store_;  // outlives its snapshots
  std::unique_ptr<Connection> connection_;
  const uint64_t revision_;
};

class SqliteStore final : public Store {
 public:
  SqliteStore(std::string path, FileLock lock, std::unique_ptr<Connection> writer)
      : path_(std::move(path)), lock_(std::move(lock)), writer_(std::move(writer)) {}

  absl::StatusOr<std::optional<Entry>> Get(std::string_view key) override {
    MutexLock lock(mutex_);
    return writer_->Get(key);
  }
  absl::StatusOr<std::vector<Entry>> List(const Range& range) override {
    MutexLock lock(mutex_);
    return writer_->List(range);
  }
  absl::StatusOr<uint64_t> Commit(const Transaction& transaction) override;
  absl::StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot() override;
  void TakeBack(std::unique_ptr<Connection> reader);

 private:
  absl::StatusOr<uint64_t> Write(const Transaction& transaction) LORRY_REQUIRES(mutex_);
  absl::Status CheckConditions(const Transaction& transaction) LORRY_REQUIRES(mutex_);
  absl::Status WriteEntries(const Transaction& transaction, uint64_t revision)
      LORRY_REQUIRES(mutex_);

  const std::string path_;
  const FileLock lock_;
  Mutex mutex_;
  absl::Status failed_ LORRY_GUARDED_BY(mutex_);  // set once a commit's outcome is not known
  const std::unique_ptr<Connection> writer_;      // used under mutex_
  Mutex readers_mutex_;
  std::vector<std::unique_ptr<Connection>> idle_readers_ LORRY_GUARDED_BY(readers_mutex_);
};

absl::StatusOr<uint64_t> SqliteStore::Commit(const Transaction& transaction) {
  LORRY_RETURN_IF_ERROR(CheckTransaction(transaction));
  MutexLock lock(mutex_);
  LORRY_RETURN_IF_ERROR(failed_);
  LORRY_RETURN_IF_ERROR(writer_->Execute("BEGIN IMMEDIATE"));
  absl::StatusOr<uint64_t> revision = Write(transaction);
  absl::Status status = revision.status();
  if (status.ok()) status = writer_->Commit();
  if (status.ok()) return revision;
  // Some errors have rolled back already.
  if (writer_->InTransaction()) (void)writer_->Execute("ROLLBACK");
  // After a failed write or sync the log may or may not hold the commit: only reading it anew can
  // tell.
  if (status.code() == absl::StatusCode::kUnavailable) failed_ = status;
  return status;
}

absl::StatusOr<uint64_t> SqliteStore::Write(const Transaction& transaction) {
  LORRY_RETURN_IF_ERROR(CheckConditions(transaction));
  LORRY_ASSIGN_OR_RETURN(const uint64_t last, writer_->Revision());
  LORRY_RETURN_IF_ERROR(WriteEntries(transaction, last + 1));
  return last + 1;
}

absl::Status SqliteStore::CheckConditions(const Transaction& transaction) {
  for (const auto& [key, wanted] : transaction.conditions) {
    LORRY_ASSIGN_OR_RETURN(const std::optional<Entry> entry, writer_->Get(key));
    const uint64_t found = entry.has_value() ? entry->revision : 0;
    if (found != wanted) return ConditionFailed(key, wanted, found);
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::WriteEntries(const Transaction& transaction, uint64_t revision) {
  LORRY_ASSIGN_OR_RETURN(sqlite3_stmt* const erase,
                         writer_->Prepare("DELETE FROM entries WHERE key = ?1"));
  LORRY_ASSIGN_OR_RETURN(
      sqlite3_stmt* const put,
      writer_->Prepare(
          "INSERT OR REPLACE INTO entries (key, value, revision) VALUES (?1, ?2, ?3)"));
  LORRY_ASSIGN_OR_RETURN(sqlite3_stmt* const head,
                         writer_->Prepare("UPDATE head SET revision = ?1"));
  for (const std::string& key : transaction.deletes) {
    const int code = Statement(erase).Bind(1, key).Step();
    if (code != SQLITE_DONE) return SqliteError(code, "deleting");
  }
  for (const auto& [key, value] : transaction.puts) {
    const int code =
        Statement(put).Bind(1, key).Bind(2, value).Bind(3, static_cast<int64_t>(revision)).Step();
    if (code != SQLITE_DONE) return SqliteError(code, "writing");
  }
  const int code = Statement(head).Bind(1, static_cast<int64_t>(revision)).Step();
  return code == SQLITE_DONE ? absl::OkStatus() : SqliteError(code, "writing");
}

absl::StatusOr<std::unique_ptr<Snapshot>> SqliteStore::TakeSnapshot() {
  std::unique_ptr<Connection> reader;
  {
    MutexLock lock(readers_mutex_);
    if (!idle_readers_.empty()) {
      reader = std::move(idle_readers_.back());
      idle_readers_.pop_back();
    }
  }
  if (reader == nullptr) {
    LORRY_ASSIGN_OR_RETURN(reader, Connection::Open(path_));
    LORRY_RETURN_IF_ERROR(reader->Execute("PRAGMA query_only = 1"));
  }
  // The first read fixes the state that the transaction sees.
  LORRY_RETURN_IF_ERROR(reader->Execute("BEGIN"));
  LORRY_ASSIGN_OR_RETURN(const uint64_t revision, reader->Revision());
  return std::make_unique<SqliteSnapshot>(*this, std::move(reader), revision);
}

void SqliteStore::TakeBack(std::unique_ptr<Connection> reader) {
  if (!reader->Execute("COMMIT").ok()) return;
  MutexLock lock(readers_mutex_);
  if (idle_readers_.size() < kIdleReadersMax) idle_readers_.push_back(std::move(reader));
}

SqliteSnapshot::~SqliteSnapshot() { store_.TakeBack(std::move(connection_)); }

// quick_check reads every page: a second a gigabyte, once a start.
absl::Status CheckIntegrity(Connection& connection, const std::string& path) {
  LORRY_ASSIGN_OR_RETURN(sqlite3_stmt* const prepared, connection.Prepare("PRAGMA quick_check(1)"));
  Statement check(prepared);
  const int code = check.Step();
  if (code != SQLITE_ROW) return SqliteError(code, absl::StrCat("checking ", path));
  const std::string verdict = check.Blob(0);
  if (verdict == "ok") return absl::OkStatus();
  return Error(absl::StatusCode::kDataLoss, "DATABASE_CORRUPT",
               absl::StrCat(path, ": ", verdict, "; restore the file from a backup"));
}

// Writes nothing to a database that is ours already, so that a full disk can be opened.
absl::Status SetUp(Connection& connection, const std::string& path) {
  LORRY_ASSIGN_OR_RETURN(const int64_t id, connection.ReadNumber("PRAGMA application_id"));
  if (id == kApplicationId) return absl::OkStatus();
  LORRY_ASSIGN_OR_RETURN(const int64_t tables,
                         connection.ReadNumber("SELECT count(*) FROM sqlite_schema"));
  if (id == 0 && tables == 0) return connection.Execute(kSetUp);
  return Error(absl::StatusCode::kFailedPrecondition, "",
               absl::StrCat(path, " is the database of another program; name another file"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const SqliteOptions& options) {
  LORRY_ASSIGN_OR_RETURN(FileLock lock, Lock(options.path + ".lock"));
  LORRY_RETURN_IF_ERROR(MakePrivate(options.path));
  LORRY_ASSIGN_OR_RETURN(std::unique_ptr<Connection> writer, Connection::Open(options.path));
  const std::string settings =
      absl::StrCat("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA max_page_count = ",
                   options.bytes_max / kPageBytes);
  LORRY_RETURN_IF_ERROR(writer->Execute(settings.c_str()));
  LORRY_RETURN_IF_ERROR(CheckIntegrity(*writer, options.path));
  LORRY_RETURN_IF_ERROR(SetUp(*writer, options.path));
  return std::make_unique<SqliteStore>(options.path, std::move(lock), std::move(writer));
}

}  // namespace lorry::kv
