// What people see: aligned tables, colours on a terminal only, sizes and ages in words. Pure
// functions but for ProgressBar, which writes to stderr and may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"

namespace lorry::cli {

enum class Colour { kPlain, kGood, kBad, kWarn, kDim, kBold };

// `text` in the terminal's colour; as it is when `enabled` is false or the colour kPlain.
std::string Paint(std::string_view text, Colour colour, bool enabled);

// `text` with control characters as \x1b, but for those in `kept`: words of clients and engines are
// shown, and move no cursor and end no line.
std::string Visible(std::string_view text, std::string_view kept = "");

struct Cell {
  std::string text;
  Colour colour = Colour::kPlain;
  Cell(std::string t, Colour c = Colour::kPlain)  // NOLINT: a text is a plain cell
      : text(std::move(t)), colour(c) {}
  Cell(const char* t) : text(t) {}  // NOLINT
};

class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void Add(std::vector<Cell> row);
  bool empty() const { return rows_.empty(); }
  // How wide its widest line is.
  size_t Columns() const;
  // Columns two spaces apart, as wide as their widest cell; the last one is not padded.
  std::string Render(bool colour) const;

 private:
  std::vector<size_t> Widths() const;
  std::vector<std::string> header_;
  std::vector<std::vector<Cell>> rows_;
};

// Columns that `text` takes: UTF-8 code points.
size_t Width(std::string_view text);

std::string Bytes(uint64_t bytes);     // "53.2 MiB"
std::string Age(int64_t ms);           // "4 s", "12 min", "3 h", "9 days"
std::string Milliseconds(int64_t ms);  // "850 ms", "2.4 s"

// One line on stderr that is drawn over and over; nothing at all when `shown` is false.
class ProgressBar {
 public:
  ProgressBar(std::string label, bool shown) : label_(std::move(label)), shown_(shown) {}
  ~ProgressBar() { Clear(); }
  void Update(uint64_t done, uint64_t total) LORRY_EXCLUDES(mutex_);
  void Clear() LORRY_EXCLUDES(mutex_);

 private:
  const std::string label_;
  const bool shown_;
  const SteadyClock clock_;
  const Tick began_ = clock_.Now();
  Mutex mutex_;
  Tick drawn_at_ LORRY_GUARDED_BY(mutex_) = 0;
  bool drawn_ LORRY_GUARDED_BY(mutex_) = false;
};

// The line that ProgressBar draws, without its control characters.
std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total, int64_t ms);

}  // namespace lorry::cli
