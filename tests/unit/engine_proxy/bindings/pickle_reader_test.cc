// What a pickle may say, and that nothing it says is done, or costs more than it has bytes.
#include "services/engine_proxy/bindings/pickle_reader.h"

#include <gtest/gtest.h>

#include <string>

#include "lib/base/error.h"

namespace lorry::proxy {
namespace {

absl::StatusOr<int64_t> Find(std::string_view module, std::string_view name) {
  if (module == "a" && name == "b") return 7;
  return Error(absl::StatusCode::kInvalidArgument, "TENSORS_INVALID",
               std::string(module) + "." + std::string(name));
}

// The value, or the reason why there is none.
std::string Show(const Pickle& pickle, PickleRef ref) {
  const PickleNode& node = pickle.at(ref);
  std::string items;
  for (const PickleRef item : node.items) items += Show(pickle, item) + " ";
  switch (node.kind) {
    case PickleKind::kNone:
      return "none";
    case PickleKind::kBool:
    case PickleKind::kInt:
      return std::to_string(node.number);
    case PickleKind::kText:
    case PickleKind::kBytes:
      return "'" + std::string(node.text) + "'";
    case PickleKind::kTuple:
      return "( " + items + ")";
    case PickleKind::kList:
      return "[ " + items + "]";
    case PickleKind::kDict:
      return "{ " + items + "}";
    case PickleKind::kGlobal:
      return "g" + std::to_string(node.number);
    case PickleKind::kCall:
      return Show(pickle, node.callee) + Show(pickle, node.arguments) +
             (node.state == kNoPickleRef ? "" : "=" + Show(pickle, node.state)) +
             (items.empty() ? "" : "{ " + items + "}");
    case PickleKind::kPersistent:
      return "@" + Show(pickle, node.arguments);
  }
  return "";
}
std::string Reads(std::string_view bytes, size_t nodes_max = 1'000) {
  const auto read = ReadPickle(bytes, Find, nodes_max);
  if (!read.ok()) return ReasonOf(read.status());
  return Show(*read, read->root) + std::string(bytes);
}
template <size_t kLength>
std::string Reads(const char (&bytes)[kLength]) {
  return Reads(std::string_view(bytes, kLength - 1));
}

TEST(PickleReader, ValuesAreWhatTheyAre) {
  EXPECT_EQ(Reads("\x80\x04N."), "none");
  EXPECT_EQ(Reads("\x80\x04\x88."), "1");
  EXPECT_EQ(Reads("\x80\x04K\xff."), "255");
  EXPECT_EQ(Reads("\x80\x04M\x01\x02."), "513");
  EXPECT_EQ(Reads("\x80\x04J\xfe\xff\xff\xff."), "-2");
  EXPECT_EQ(Reads("\x80\x04\x8a\x00."), "0");
  EXPECT_EQ(Reads("\x80\x04\x8a\x01\xff."), "-1");
  EXPECT_EQ(Reads("\x80\x04\x8a\x03\x00\x00\x01."), "65536");
  EXPECT_EQ(Reads("\x80\x04\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), "9223372036854775807");
  EXPECT_EQ(Reads("\x80\x04\x8c\x02"
                  "ab."),
            "'ab'");
  EXPECT_EQ(Reads("\x80\x04"
                  "C\x02"
                  "ab."),
            "'ab'");
  EXPECT_EQ(Reads("\x80\x04(K\x01K\x02t."), "( 1 2 )");
  EXPECT_EQ(Reads("\x80\x04](K\x01K\x02"
                  "eK\x03"
                  "a."),
            "[ 1 2 3 ]");
  EXPECT_EQ(Reads("\x80\x04}K\x01K\x02s(K\x03K\x04u."), "{ 1 2 3 4 }");
  EXPECT_EQ(Reads("\x80\x04\x95\x02\0\0\0\0\0\0\0N.rest"), "nonerest");
}

TEST(PickleReader, ImportsAndCallsAreWrittenDown) {
  EXPECT_EQ(Reads("\x80\x02"
                  "ca\nb\n."),
            "g7");
  EXPECT_EQ(Reads("\x80\x04\x8c\x01"
                  "a\x8c\x01"
                  "b\x93K\x01\x85R."),
            "g7( 1 )");
  EXPECT_EQ(Reads("\x80\x02"
                  "ca\nb\n)\x81}K\x01K\x02sb."),
            "g7( )={ 1 2 }");
  EXPECT_EQ(Reads("\x80\x02"
                  "ca\nb\n)RK\x01K\x02s."),
            "g7( ){ 1 2 }")
      << "an OrderedDict";
  EXPECT_EQ(Reads("\x80\x02K\x01Q."), "@1");
  EXPECT_EQ(Reads("\x80\x02"
                  "cos\nsystem\n."),
            "TENSORS_INVALID");
}

TEST(PickleReader, WhatIsRememberedIsTheSame) {
  EXPECT_EQ(Reads("\x80\x04\x8c\x01"
                  "a\x94h\x00\x86."),
            "( 'a' 'a' )");
  EXPECT_EQ(Reads("\x80\x04Nq\x00q\x01K\x02q\x00h\x00\x87."), "( none 2 2 )") << "overwritten";
  EXPECT_EQ(Reads("\x80\x04Nq\x05."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04Nr\xff\xff\xff\xff."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04Nh\x00."), "TENSORS_INVALID");
}

TEST(PickleReader, WhatEndsEarlyOrClaimsMoreIsRefused) {
  const std::string_view whole(
      "\x80\x04\x95\x20\0\0\0\0\0\0\0}\x94(\x8c\x01"
      "aB\x03\0\0\0xyzX\x01\0\0\0bJ\1\0\0\0u.",
      38);
  EXPECT_EQ(Reads(whole), "{ 'a' 'xyz' 'b' 1 }");
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_EQ(Reads(whole.substr(0, length)), "TENSORS_INVALID") << length;
  EXPECT_EQ(Reads("\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff"
                  "a."),
            "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04\x8a\x09"
                  "123456789."),
            "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x06N."), "TENSORS_INVALID");
}

TEST(PickleReader, NothingIsTakenFromBelowAMark) {
  EXPECT_EQ(Reads("\x80\x04}K\x01(s."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04](K\x01"
                  "a."),
            "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04N(."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04t."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04K\x01K\x02(\x86t."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04NN."), "TENSORS_INVALID");
}

TEST(PickleReader, NothingElseIsBuiltOrCalled) {
  EXPECT_EQ(Reads("\x80\x04N)R."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04"
                  "ca\nb\nNR."),
            "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04}Nb."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04"
                  "ca\nb\n)RNbNb."),
            "TENSORS_INVALID")
      << "one state";
  EXPECT_EQ(Reads("\x80\x04}K\x01"
                  "a."),
            "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04NK\x01K\x02s."), "TENSORS_INVALID");
  EXPECT_EQ(Reads("\x80\x04}(K\x01u."), "TENSORS_INVALID");
}

// Every opcode that is not one of those above.
TEST(PickleReader, NoOtherOpcodeIsKnown) {
  const std::string known =
      "(.JKMNQRXabcehjqrstu])}BC\x80\x81\x85\x86\x87\x88\x89\x8a\x8c\x8d\x8e\x93\x94\x95";
  for (int op = 0; op < 256; ++op) {
    if (known.find(static_cast<char>(op)) != std::string::npos) continue;
    std::string_view bytes;
    const std::string text =
        std::string("\x80\x02N(ca\nb\n)", 9) + static_cast<char>(op) + "1\n1\n.";
    bytes = text;
    const auto read = ReadPickle(bytes, Find);
    ASSERT_FALSE(read.ok()) << op;
    EXPECT_NE(read.status().message().find("the opcode"), absl::string_view::npos) << op;
  }
}

TEST(PickleReader, DepthCostsNothing) {
  const std::string deep = "\x80\x04)" + std::string(100'000, '\x85') + ".";
  std::string_view bytes = deep;
  EXPECT_TRUE(ReadPickle(bytes, Find).ok());
  const auto marked = [](size_t depth) {
    return Reads("\x80\x04" + std::string(depth, '(') + std::string(depth, 't') + ".");
  };
  EXPECT_EQ(marked(3), "( ( ( ) ) )");
  EXPECT_NE(marked(6), "TENSORS_INVALID");
  EXPECT_EQ(marked(7), "TENSORS_INVALID");
}

TEST(PickleReader, ThereAreOnlySoManyValues) {
  const std::string many = "\x80\x04(" + std::string(999, 'N') + "t.";
  EXPECT_NE(Reads(many, 1'000), "TENSORS_INVALID");
  EXPECT_EQ(Reads(many, 999), "TENSORS_INVALID");
  std::string again = "\x80\x04(N\x94";
  for (int i = 0; i < 9; ++i) again += std::string("h\0", 2);
  EXPECT_NE(Reads(again + "t.", 10), "TENSORS_INVALID");
  EXPECT_EQ(Reads(again + std::string("h\0t.", 4), 10), "TENSORS_INVALID") << "nor as many times";
  EXPECT_EQ(Reads("\x80\x04N" + std::string(11, '\x94') + ".", 10), "TENSORS_INVALID");
}

}  // namespace
}  // namespace lorry::proxy
