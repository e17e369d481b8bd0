#include "clients/cli/output.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/strings.h"

namespace lorry::cli {
namespace {

// Spaces between columns.
constexpr size_t kGap = 2;
// A terminal is redrawn no more often than an eye follows.
constexpr Tick kRedrawMs = 50;

const char* CodeOf(Colour colour) {
  switch (colour) {
    case Colour::kPlain:
      return "";
    case Colour::kGood:
      return "\033[32m";
    case Colour::kBad:
      return "\033[31m";
    case Colour::kWarn:
      return "\033[33m";
    case Colour::kDim:
      return "\033[2m";
    case Colour::kBold:
      return "\033[1m";
  }
  return "";
}

}  // namespace

std::string Paint(std::string_view text, Colour colour, bool enabled) {
  if (!enabled || colour == Colour::kPlain || text.empty()) return std::string(text);
  return absl::StrCat(CodeOf(colour), ToAbsl(text), "\033[0m");
}

std::string Visible(std::string_view text, std::string_view kept) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<uint8_t>(c);
    const auto next = static_cast<uint8_t>(i + 1 < text.size() ? text[i + 1] : '\0');
    const bool is_control = byte < 0x20 || byte == 0x7f;
    if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) {  // U+0080 to U+009F, such as another escape
      absl::StrAppendFormat(&out, "\\u%04x", next);
      ++i;
    } else if (is_control && kept.find(c) == kept.npos) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out += c;
    }
  }
  return out;
}

size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

Table::Table(std::vector<std::string> header) : header_(std::move(header)) {
  for (std::string& title : header_) title = Visible(title);
}

void Table::Add(std::vector<Cell> row) {
  for (Cell& cell : row) cell.text = Visible(cell.text);
  rows_.push_back(std::move(row));
}

std::vector<size_t> Table::Widths() const {
  std::vector<size_t> widths;
  for (const std::string& title : header_) widths.push_back(Width(title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], Width(row[i].text));
    }
  }
  return widths;
}

size_t Table::Columns() const {
  size_t columns = 0;
  for (const size_t width : Widths()) columns += width + kGap;
  return columns - std::min(columns, kGap);
}

std::string Table::Render(bool colour) const {
  const std::vector<size_t> widths = Widths();
  std::string out;
  const auto add_row = [&](const std::vector<Cell>& row) {
    // Empty cells at the end would leave spaces that nobody sees and every diff shows.
    size_t used = std::min(row.size(), widths.size());
    while (used > 0 && row[used - 1].text.empty()) --used;
    for (size_t i = 0; i < used; ++i) {
      out += Paint(row[i].text, row[i].colour, colour);
      if (i + 1 < used) out.append(widths[i] - Width(row[i].text) + kGap, ' ');
    }
    out += '\n';
  };
  std::vector<Cell> titles;
  for (const std::string& title : header_) titles.emplace_back(title, Colour::kDim);
  add_row(titles);
  for (const auto& row : rows_) add_row(row);
  return out;
}

std::string Bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string Age(int64_t ms) {
  const int64_t s = std::max<int64_t>(ms, 0) / 1000;
  if (s < 90) return absl::StrCat(s, " s");
  if (s < 90 * 60) return absl::StrCat(s / 60, " min");
  if (s < 48 * 3600) return absl::StrCat(s / 3600, " h");
  return absl::StrCat(s / 86400, " days");
}

std::string Milliseconds(int64_t ms) {
  if (ms < 1000) return absl::StrCat(ms, " ms");
  return absl::StrFormat("%.1f s", static_cast<double>(ms) / 1000);
}

std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total, int64_t ms) {
  constexpr uint64_t kBarWidth = 24;
  const uint64_t filled = total == 0 ? kBarWidth : std::min(done, total) * kBarWidth / total;
  std::string bar;
  for (uint64_t i = 0; i < kBarWidth; ++i) bar += i < filled ? "█" : "░";
  const uint64_t rate = ms > 0 ? done * 1000 / static_cast<uint64_t>(ms) : 0;
  return absl::StrCat(label, " ", bar, " ", Bytes(done), " of ", Bytes(total), ", ", Bytes(rate),
                      "/s");
}

void ProgressBar::Update(uint64_t done, uint64_t total) {
  if (!shown_) return;
  MutexLock lock(mutex_);
  const Tick now = clock_.Now();
  if (drawn_ && done < total && now - drawn_at_ < kRedrawMs) return;
  drawn_at_ = now;
  drawn_ = true;
  std::fprintf(stderr, "\r\033[K%s", ProgressLine(label_, done, total, now - began_).c_str());
}

void ProgressBar::Clear() {
  MutexLock lock(mutex_);
  if (drawn_) std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace lorry::cli
