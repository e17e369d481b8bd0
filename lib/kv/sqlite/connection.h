// One SQLite connection and its prepared statements. Not thread-safe: its owner locks.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/kv/store.h"

namespace lorry::kv {

// SQLite's result code as ours: see kv::Store for the reasons. To be asked before anything else
// sets `errno`, which tells a disk that is full from one that has failed.
absl::Status SqliteError(int code, std::string_view doing);

// A prepared statement being run: binds are 1-based as SQLite's, columns 0-based. Reset when it
// goes.
class Statement {
 public:
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  ~Statement() {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  Statement(const Statement&) = delete;

  Statement& Bind(int index, std::string_view blob);  // `blob` outlives the statement
  Statement& Bind(int index, int64_t number);
  // SQLITE_ROW, SQLITE_DONE or an error code.
  int Step() { return sqlite3_step(statement_); }
  std::string Blob(int column) const;
  int64_t Number(int column) const { return sqlite3_column_int64(statement_, column); }

 private:
  sqlite3_stmt* const statement_;
};

class Connection {
 public:
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const std::string& path);
  ~Connection();
  Connection(const Connection&) = delete;

  absl::Status Execute(const char* sql);
  // UNAVAILABLE where the log may hold the transaction all the same.
  absl::Status Commit();
  // Prepared once, kept until the connection closes.
  absl::StatusOr<sqlite3_stmt*> Prepare(std::string_view sql);

  absl::StatusOr<std::optional<Entry>> Get(std::string_view key);
  absl::StatusOr<std::vector<Entry>> List(const Range& range);
  absl::StatusOr<uint64_t> Revision();
  absl::StatusOr<int64_t> ReadNumber(std::string_view sql);  // of a statement with one row
  bool InTransaction() const { return sqlite3_get_autocommit(db_) == 0; }

 private:
  explicit Connection(sqlite3* db) : db_(db) {}
  sqlite3* const db_;
  std::vector<std::pair<std::string, sqlite3_stmt*>> prepared_;  // a handful: searched in order
};

}  // namespace lorry::kv
