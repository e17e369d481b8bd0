#include "lib/peft/json.h"

#include <charconv>
#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/strings.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

// One pass over the events before the document is built: depth and duplicate keys.
class LimitsSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& why() const { return why_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& text) override {
    return keys_.back().insert(text).second || Fail(absl::StrCat("has ", Quoted(text), " twice"));
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("is not JSON at byte ", position));
  }

 private:
  bool Open() {
    keys_.emplace_back();
    return keys_.size() <= kConfigDepthMax ||
           Fail(absl::StrCat("nests deeper than ", kConfigDepthMax));
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }
  // Reading ends with the first event that fails.
  bool Fail(std::string why) {
    why_ = std::move(why);
    return false;
  }

  std::vector<std::set<std::string>> keys_;  // one set for each open object or list
  std::string why_;
};

absl::Status Malformed(std::string_view what, std::string_view why) {
  return Refuse("CONFIG_MALFORMED",
                absl::StrCat(ToAbsl(what), " ", ToAbsl(why), "; write it again"));
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view what) {
  if (text.size() > kConfigBytesMax) {
    return Malformed(what, absl::StrCat("is longer than ", kConfigBytesMax, " bytes"));
  }
  // The JSON library takes a NUL for the end of its input.
  if (text.find('\0') != text.npos) return Malformed(what, "holds a NUL");
  LimitsSax limits;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &limits))
    return Malformed(what, limits.why());
  nlohmann::json value =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return Malformed(what, "is not a JSON object");
  return value;
}

absl::StatusOr<std::string> JsonString(std::string_view text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return Refuse("CONFIG_MALFORMED", absl::StrCat(Quoted(text), " is not UTF-8; rename it"));
  }
}

std::string JsonNumber(double value) {
  LORRY_CHECK(std::isfinite(value));
  constexpr double kExactIntegers = 9007199254740992.0;  // 2^53
  if (value == std::trunc(value) && std::fabs(value) < kExactIntegers) {
    return absl::StrCat(static_cast<int64_t>(value));
  }
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));  // [-]d[.ddd]e[+-]xx
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t digits_at = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + digits_at, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  // Between those exponents repr() writes no exponent at all.
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (absl::ascii_isdigit(static_cast<unsigned char>(c))) digits += c;
  }
  if (exponent < 0) {
    digits = absl::StrCat("0.", std::string(static_cast<size_t>(-exponent - 1), '0'), digits);
  } else {
    const size_t whole = static_cast<size_t>(exponent) + 1;
    // A whole number of 2^53 or more has fewer digits than places; repr() ends it in ".0".
    if (digits.size() <= whole) digits.append(whole - digits.size(), '0');
    digits.insert(whole, digits.size() == whole ? ".0" : ".");
  }
  return value < 0 ? absl::StrCat("-", digits) : digits;
}

std::optional<uint32_t> WholeNumber(const nlohmann::json& value) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  if (!(number >= 0 && number < 4294967296.0) || number != std::trunc(number)) return std::nullopt;
  return static_cast<uint32_t>(number);
}

}  // namespace lorry::peft
