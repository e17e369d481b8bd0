#include "lib/kv/sqlite/connection.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::kv {
namespace {
// A checkpoint in one connection holds another's read for milliseconds; this is far above.
constexpr int kBusyMs = 5'000;

// A quota that is used up, and the index of the log that finds no room, SQLite calls errors of the
// disk. `errno` is still that of the call that failed, which is also what SQLite itself would say.
bool IsFull(int code) {
  return code == SQLITE_FULL || ((code == SQLITE_IOERR_WRITE || code == SQLITE_IOERR_SHMSIZE) &&
                                 (errno == ENOSPC || errno == EDQUOT));
}
}  // namespace

absl::Status SqliteError(int code, std::string_view doing) {
  const bool full = IsFull(code);
  const std::string what =
      absl::StrCat(ToAbsl(doing), ": ", sqlite3_errstr(full ? SQLITE_FULL : code));
  if (full) {
    return Error(absl::StatusCode::kResourceExhausted, "DISK_FULL",
                 absl::StrCat(what, "; make room and try again"));
  }
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Error(absl::StatusCode::kDataLoss, "DATABASE_CORRUPT",
                   absl::StrCat(what, "; restore the file from a backup"));
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return Error(absl::StatusCode::kPermissionDenied, "", what);
    case SQLITE_CANTOPEN:
      return Error(absl::StatusCode::kNotFound, "",
                   absl::StrCat(what, "; its directory must exist and be writable"));
    default:
      return Error(absl::StatusCode::kUnavailable, "STORE_FAILED", what);
  }
}

Statement& Statement::Bind(int index, std::string_view blob) {
  // A null pointer would bind NULL, and an empty value is not that.
  sqlite3_bind_blob(statement_, index, blob.empty() ? "" : blob.data(),
                    static_cast<int>(blob.size()), SQLITE_STATIC);
  return *this;
}

Statement& Statement::Bind(int index, int64_t number) {
  sqlite3_bind_int64(statement_, index, number);
  return *this;
}

std::string Statement::Blob(int column) const {
  const char* data = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  const int bytes = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? std::string() : std::string(data, static_cast<size_t>(bytes));
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const std::string& path) {
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<Connection> connection(new Connection(db));
  if (code != SQLITE_OK) return SqliteError(code, absl::StrCat("opening ", path));
  sqlite3_extended_result_codes(db, 1);
  sqlite3_busy_timeout(db, kBusyMs);
  return connection;
}

Connection::~Connection() {
  for (const auto& [sql, statement] : prepared_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

absl::Status Connection::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : SqliteError(code, sql);
}

absl::Status Connection::Commit() {
  const int code = sqlite3_exec(db_, "COMMIT", nullptr, nullptr, nullptr);
  if (code == SQLITE_OK) return absl::OkStatus();
  // The index is written after the log.
  return SqliteError(code == SQLITE_IOERR_SHMSIZE ? SQLITE_IOERR : code, "committing");
}

absl::StatusOr<sqlite3_stmt*> Connection::Prepare(std::string_view sql) {
  const auto known = std::find_if(prepared_.begin(), prepared_.end(),
                                  [sql](const auto& entry) { return entry.first == sql; });
  if (known != prepared_.end()) return known->second;
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(db_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return SqliteError(code, sql);
  prepared_.emplace_back(sql, statement);
  return statement;
}

absl::StatusOr<std::optional<Entry>> Connection::Get(std::string_view key) {
  LORRY_ASSIGN_OR_RETURN(sqlite3_stmt* const prepared,
                         Prepare("SELECT value, revision FROM entries WHERE key = ?1"));
  Statement statement(prepared);
  const int code = statement.Bind(1, key).Step();
  if (code == SQLITE_DONE) return std::optional<Entry>();
  if (code != SQLITE_ROW) return SqliteError(code, "reading");
  return Entry{.key = std::string(key),
               .value = statement.Blob(0),
               .revision = static_cast<uint64_t>(statement.Number(1))};
}

absl::StatusOr<std::vector<Entry>> Connection::List(const Range& range) {
  LORRY_ASSIGN_OR_RETURN(sqlite3_stmt* const prepared,
                         Prepare("SELECT key, value, revision FROM entries WHERE key >= ?1 "
                                 "ORDER BY key LIMIT ?2"));
  const std::string start = std::max(range.prefix, range.start);
  Statement statement(prepared);
  statement.Bind(1, start).Bind(2, static_cast<int64_t>(std::min<size_t>(range.limit, INT32_MAX)));
  std::vector<Entry> found;
  int code;
  while ((code = statement.Step()) == SQLITE_ROW) {
    Entry entry{.key = statement.Blob(0),
                .value = statement.Blob(1),
                .revision = static_cast<uint64_t>(statement.Number(2))};
    if (!entry.key.starts_with(range.prefix)) return found;
    found.push_back(std::move(entry));
  }
  if (code != SQLITE_DONE) return SqliteError(code, "listing");
  return found;
}

absl::StatusOr<uint64_t> Connection::Revision() {
  LORRY_ASSIGN_OR_RETURN(const int64_t revision, ReadNumber("SELECT revision FROM head"));
  return static_cast<uint64_t>(revision);
}

absl::StatusOr<int64_t> Connection::ReadNumber(std::string_view sql) {
  LORRY_ASSIGN_OR_RETURN(sqlite3_stmt* const prepared, Prepare(sql));
  Statement statement(prepared);
  const int code = statement.Step();
  if (code == SQLITE_ROW) return statement.Number(0);
  return SqliteError(code == SQLITE_DONE ? SQLITE_CORRUPT : code, sql);
}

}  // namespace lorry::kv
