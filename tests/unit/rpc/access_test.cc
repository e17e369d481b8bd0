#include "lib/rpc/access.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "lib/base/error.h"
#include "tests/testing/captured_log.h"
#include "tests/testing/eventually.h"
#include "tests/testing/temp_dir.h"
#include "tests/unit/rpc/echo_service.h"

namespace lorry::rpc {
namespace {

class File {
 public:
  explicit File(const std::string& text) { std::ofstream(path_) << text; }
  const std::string& path() const { return path_; }

 private:
  TempDir directory_;
  std::string path_ = directory_ / "tokens";
};

constexpr char kTokens[] =
    "# who may do what\n"
    "publisher publisher-token-0001 trainer\n"
    "engine    engine-token-00000001\n"
    "reader    reader-token-00000001\n"
    "operator  operator-token-000001 alice  # on call\n"
    "\n";

absl::Status SayWithToken(EchoServer& server, const std::string& token) {
  const File file(token + "\n");
  return Say(*server.Stub({.token_file = token.empty() ? "" : file.path()}), "hello");
}

// Files are looked at again after a second or so; a call is made in each round.
void WaitUntil(const std::function<bool()>& done) {
  EXPECT_TRUE(Eventually(done, std::chrono::seconds(50))) << "it never came to be";
}

// Of each call that the server handles from now on.
void NoteCaller(EchoServer& server, std::string& name) {
  server.service.handler = [&name](const Call& call) {
    name = call.caller.name;
    return absl::OkStatus();
  };
}

int CountOf(const std::string& words, const std::string& text) {
  int count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) {
    ++count;
  }
  return count;
}

TEST(Roles, PermitWhatTheyContain) {
  EXPECT_TRUE(Roles(Role::kPublisher).Permits(Role::kPublisher));
  EXPECT_FALSE(Roles(Role::kPublisher).Permits(Role::kEngine));
  EXPECT_TRUE(Roles(Role::kPublisher).Permits(Roles({Role::kEngine, Role::kPublisher})));
  EXPECT_TRUE(Roles(Role::kEngine).Permits(Role::kReader)) << "whoever has a role may read";
  EXPECT_FALSE(Roles(Role::kReader).Permits(Role::kOperator));
  EXPECT_TRUE(Roles(Role::kOperator).Permits(Role::kEngine)) << "an operator may do everything";
  EXPECT_FALSE(Roles().Permits(Role::kReader));
}

TEST(Access, IsOpenWithoutCredentials) {
  EchoServer server;
  EXPECT_TRUE(SayWithToken(server, "").ok());
}

TEST(Access, AdmitsARoleThatSuffices) {
  const File tokens(kTokens);
  EchoServer server({}, {}, tokens.path());
  std::string name;
  NoteCaller(server, name);
  EXPECT_TRUE(SayWithToken(server, "publisher-token-0001").ok());
  EXPECT_EQ(name, "trainer");
  EXPECT_TRUE(SayWithToken(server, "operator-token-000001").ok());
}

TEST(Access, RefusesEverybodyElseWithAReason) {
  const File tokens(kTokens);
  EchoServer server({}, {}, tokens.path());
  const absl::Status none = SayWithToken(server, "");
  EXPECT_EQ(none.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(ReasonOf(none), "UNAUTHENTICATED");
  const absl::Status unknown = SayWithToken(server, "publisher-token-0002");
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(unknown.message().find("publisher-token-0002"), absl::string_view::npos);
  const absl::Status reader = SayWithToken(server, "reader-token-00000001");
  EXPECT_EQ(reader.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(reader), "ROLE_MISSING");
}

// What gRPC says of a message that it read shows whether it read it.
TEST(Access, NoMessageOfAStrangerIsRead) {
  const File tokens(kTokens);
  EchoServer server({.receive_max_bytes = 1000}, {}, tokens.path());
  const std::string long_text(5000, 'x');
  EXPECT_EQ(Say(*server.Stub({.token = "publisher-token-0001"}), long_text).code(),
            absl::StatusCode::kResourceExhausted);
  const absl::Status stranger = Say(*server.Stub({.token = "publisher-token-0002"}), long_text);
  EXPECT_EQ(stranger.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(ReasonOf(stranger), "UNAUTHENTICATED");
  EXPECT_THAT(std::string(stranger.message()), testing::HasSubstr("no known bearer token"));
}

TEST(Access, WhetherAServerIsWellIsToldToEverybody) {
  const File tokens(kTokens);
  EchoServer server({}, {}, tokens.path());
  server.server->SetServing(true);
  const auto channel = MakeChannel({.target = server.server->address()});
  ASSERT_TRUE(channel.ok());
  grpc::GenericStub stub(*channel);
  grpc::ClientContext context;
  const grpc::Slice nothing("");
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> said;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                 [&](grpc::Status status) { said.set_value(std::move(status)); });
  const grpc::Status status = said.get_future().get();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(Access, ATokenMayBeLimitedToAdapters) {
  const File tokens(
      "publisher limited-token-00001 small adapters=policy,math-*\n"
      "publisher another-token-00001 adapters=code\n"
      "publisher unlimited-token-001\n");
  EchoServer server({}, {}, tokens.path());
  std::string name;
  NoteCaller(server, name);
  const auto verdict = [&](const std::string& token, const std::string& adapter) {
    server.service.adapter = adapter;
    const absl::Status said = SayWithToken(server, token);
    return said.ok() ? "OK" : ReasonOf(said);
  };
  for (const char* allowed : {"policy", "math-7", "math-", "*"}) {
    EXPECT_EQ(verdict("limited-token-00001", allowed), "OK") << allowed;
  }
  EXPECT_EQ(name, "small");
  for (const char* denied : {"policy2", "math", "code", ""}) {
    EXPECT_EQ(verdict("limited-token-00001", denied), "ADAPTER_DENIED") << denied;
    EXPECT_EQ(verdict("unlimited-token-001", denied), "OK") << denied;
  }
  EXPECT_EQ(name.substr(0, 6), "token-") << "a name that stays when lines move";
  EXPECT_EQ(verdict("another-token-00001", "code"), "OK");
}

TEST(Access, AFileThatCannotBeUnderstoodIsRefusedByLine) {
  const File bad_role("reader reader-token-00000001\nking royal-token-0000001\n");
  EXPECT_THAT(std::string(Access::Open(bad_role.path(), false).status().message()),
              testing::HasSubstr(":2:"));
  for (const char* line : {"adapters=", "adapters=a,,b", "adapters=a*b", "name adapters=a other"}) {
    const File bad(std::string("reader reader-token-00000001 ") + line + "\n");
    EXPECT_FALSE(Access::Open(bad.path(), false).ok()) << line;
  }
  const File short_token("reader abc\n");
  EXPECT_FALSE(Access::Open(short_token.path(), false).ok());
  EXPECT_FALSE(Access::Open("/nonexistent/tokens", false).ok());
}

// Whoever takes a token back and mistypes another line has taken nothing back: the log says so,
// once.
TEST(Access, AFileThatGoesWrongTakesNoTokenAwayButSaysSo) {
  const File tokens(kTokens);
  EchoServer server({}, {}, tokens.path());
  ASSERT_TRUE(SayWithToken(server, "publisher-token-0001").ok());
  const CapturedLog log;
  std::ofstream(tokens.path()) << "engine short\n";
  const auto complaints = [&] { return CountOf("expected `<role>", log.text()); };
  WaitUntil([&] {
    EXPECT_TRUE(SayWithToken(server, "publisher-token-0001").ok());
    return complaints() == 1;
  });
  std::ofstream(tokens.path()) << "engine engine-token-00000001\n";
  WaitUntil([&] { return !SayWithToken(server, "publisher-token-0001").ok(); });
  EXPECT_EQ(complaints(), 1);
}

// Runs belong to names: a training whose token is replaced goes on under the same one.
TEST(Access, APublisherWithoutANameIsToldOfAndCanBeReplaced) {
  const File tokens(
      "publisher publisher-token-0001\n"
      "publisher publisher-token-0002 trainer\n"
      "reader reader-token-00000001\n");
  const CapturedLog log;
  EchoServer server({}, {}, tokens.path());
  EXPECT_EQ(CountOf("line has no name", log.text()), 1) << log.text();
  std::string name;
  NoteCaller(server, name);
  ASSERT_TRUE(SayWithToken(server, "publisher-token-0001").ok());
  EXPECT_EQ(CountOf(name, log.text()), 1) << name;
  const File replaced("publisher publisher-token-0003 " + name + "\n");
  EchoServer later({}, {}, replaced.path());
  std::string heir;
  NoteCaller(later, heir);
  ASSERT_TRUE(SayWithToken(later, "publisher-token-0003").ok());
  EXPECT_EQ(heir, name);
  EXPECT_EQ(CountOf("line has no name", log.text()), 1) << "this one has";
}

// An editor or `cat new > tokens` empties the file before it fills it, and what it has written so
// far may end anywhere: before the words that limit a token, for instance.
TEST(Access, AFileThatIsJustWrittenLocksNobodyOutAndLiftsNoLimit) {
  const std::string limited = "publisher limited-token-00001 small";
  const File tokens(limited + " adapters=policy\n");
  EchoServer server({}, {}, tokens.path());
  server.service.adapter = "code";
  const auto verdict = [&] { return ReasonOf(SayWithToken(server, "limited-token-00001")); };
  const CapturedLog log;
  const auto complains = [&](const std::string& words) {
    WaitUntil([&] {
      EXPECT_EQ(verdict(), "ADAPTER_DENIED");
      return CountOf(words, log.text()) == 1;
    });
  };
  std::ofstream(tokens.path()) << "# nobody yet\n";
  complains("names no token");
  std::ofstream(tokens.path()) << limited;
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(tokens.path(), now + std::chrono::hours(1));
  complains("ends within a line");
  // A Secret's last line often has no end: nobody writes at it any more.
  std::filesystem::last_write_time(tokens.path(), now - std::chrono::hours(1));
  WaitUntil([&] { return verdict().empty(); });
}

// As a file has that was copied with its time from a host whose clock is ahead.
TEST(Access, ATimeInTheFutureKeepsNoTokenValid) {
  const File tokens(kTokens);
  EchoServer server({}, {}, tokens.path());
  ASSERT_TRUE(SayWithToken(server, "publisher-token-0001").ok());
  std::ofstream(tokens.path()) << "operator operator-token-000001";
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(tokens.path(), now + std::chrono::hours(1));
  WaitUntil([&] { return !SayWithToken(server, "publisher-token-0001").ok(); });
  EXPECT_TRUE(SayWithToken(server, "operator-token-000001").ok());
}

// Beside a server that knows the old one and the new one, a token is replaced without a restart.
TEST(Dial, AnotherTokenInTheFileIsShown) {
  const File tokens(kTokens);
  EchoServer server({}, {}, tokens.path());
  std::string name;
  NoteCaller(server, name);
  const File shown("publisher-token-0001\n");
  const auto stub = server.Stub({.token_file = shown.path()});
  ASSERT_TRUE(Say(*stub, "hello").ok());
  EXPECT_EQ(name, "trainer");
  std::ofstream(shown.path()) << "operator-token-000001\n";
  WaitUntil([&] { return Say(*stub, "hello").ok() && name == "alice"; });
  std::ofstream(shown.path()) << "";
  WaitUntil([&] { return Say(*stub, "hello").ok() && name == "alice"; });
}

// As it is while it is replaced, at the moment in which a channel is made anew.
TEST(Dial, ATokenThatComesIntoAnEmptyFileIsShown) {
  const File tokens(kTokens);
  EchoServer server({}, {}, tokens.path());
  std::string name;
  NoteCaller(server, name);
  const File shown("");
  const auto stub = server.Stub({.token_file = shown.path()});
  ASSERT_FALSE(Say(*stub, "hello").ok());
  std::ofstream(shown.path()) << "publisher-token-0001\n";
  WaitUntil([&] { return Say(*stub, "hello").ok() && name == "trainer"; });
}

// gRPC would end the process over such a header, and print it.
TEST(Dial, WhatIsNoTokenIsRefusedAndNeverQuoted) {
  for (const std::string secret : {"s3cret-old\ns3cret-new", "operator s3cret alice",
                                   "\xef\xbb\xbfs3cret", "s3cret\xe4", "s3cret\x01"}) {
    const File file(secret + "\n");
    for (const ChannelOptions& options : {ChannelOptions{.target = "localhost:1", .token = secret},
                                          {.target = "localhost:1", .token_file = file.path()}}) {
      const absl::Status refused = MakeChannel(options).status();
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << secret;
      EXPECT_THAT(std::string(refused.message()),
                  testing::HasSubstr(options.token.empty() ? file.path() : "given as the token"));
      EXPECT_THAT(std::string(refused.message()), testing::Not(testing::HasSubstr("s3cret")));
    }
  }
}

TEST(Dial, AFileThatComesToHoldNoTokenLeavesTheOneOfBeforeAndIsToldOfOnce) {
  const File tokens(kTokens);
  EchoServer server({}, {}, tokens.path());
  const File shown("publisher-token-0001\n");
  const auto stub = server.Stub({.token_file = shown.path()});
  ASSERT_TRUE(Say(*stub, "hello").ok());
  const CapturedLog log;
  const auto complaints = [&] { return CountOf("is not one token", log.text()); };
  std::ofstream(shown.path()) << "publisher-token-0001\noperator-token-000001\n";
  WaitUntil([&] {
    EXPECT_TRUE(Say(*stub, "hello").ok());
    return complaints() > 0;
  });
  std::string name;
  NoteCaller(server, name);
  std::ofstream(shown.path()) << "operator-token-000001\n";
  WaitUntil([&] { return Say(*stub, "hello").ok() && name == "alice"; });
  EXPECT_EQ(complaints(), 1);
  EXPECT_EQ(CountOf("token-0", log.text()), 0) << log.text();
}

TEST(Listen, ElsewhereThanLoopbackNeedsCredentialsOrAWord) {
  auto access = *Access::Open("", false);
  Gate gate(*access);
  const auto refused = Server::Start({.address = "0.0.0.0:0"}, gate, {});
  EXPECT_EQ(ReasonOf(refused.status()), "INSECURE_LISTEN");
  const auto allowed = Server::Start({.address = "0.0.0.0:0", .allow_insecure = true}, gate, {});
  EXPECT_TRUE(allowed.ok()) << allowed.status();
}

TEST(Dial, ATokenOffThisMachineWithoutTlsIsInClear) {
  EXPECT_TRUE(SendsTokenInClear({.target = "192.0.2.1:1", .token = "secret"}));
  EXPECT_TRUE(SendsTokenInClear({.target = "dns:///store:1", .token_file = "file"}));
  EXPECT_FALSE(SendsTokenInClear({.target = "192.0.2.1:1"}));
  EXPECT_FALSE(SendsTokenInClear({.target = "localhost:1", .token = "secret"}));
  EXPECT_FALSE(SendsTokenInClear({.target = "unix:/run/lorry", .token = "secret"}));
  EXPECT_FALSE(
      SendsTokenInClear({.target = "192.0.2.1:1", .tls = {.ca = "ca.pem"}, .token = "secret"}));
}

// Certificates made by openssl once a run; roles are in the URI names.
class Tls : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_.emplace();
    const std::string script = "cd " + dir_->path() +
                               " && exec 2>/dev/null && set -e\n"
                               "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 "
                               "-nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem\n"
                               "make() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 "
                               "-nodes -subj /CN=$1 -keyout $1.key -out $1.csr\n"
                               "  printf \"subjectAltName=$2\" > $1.ext\n"
                               "  openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key "
                               "-CAcreateserial -days 2 -extfile $1.ext -out $1.pem; }\n"
                               "make server DNS:localhost,IP:127.0.0.1\n"
                               "make publisher URI:spiffe://lorry/role/publisher\n"
                               "make reader URI:spiffe://lorry/role/reader\n";
    ASSERT_EQ(std::system(("bash -c '" + script + "'").c_str()), 0);
  }
  static void TearDownTestSuite() { dir_.reset(); }
  static std::string At(const std::string& file) { return *dir_ / file; }
  // The files of `name` become those of `who`, each at once.
  static void Become(const std::string& name, const std::string& who) {
    for (const std::string end : {".key", ".pem"}) {
      std::filesystem::copy_file(At(who + end), At("unfinished"));
      std::filesystem::rename(At("unfinished"), At(name + end));
    }
  }
  static absl::Status SayAs(EchoServer& server, const std::string& who) {
    ChannelOptions options{.target = "localhost:" + std::to_string(server.server->port()),
                           .tls = {.ca = At("ca.pem")}};
    if (!who.empty()) {
      options.tls.cert = At(who + ".pem");
      options.tls.key = At(who + ".key");
    }
    return Say(*server.Stub(options), "hello");
  }

  static inline std::optional<TempDir> dir_;
};

TEST_F(Tls, TheCertificatesRoleDecides) {
  EchoServer server(
      {.address = "localhost:0",
       .tls = {.cert = At("server.pem"), .key = At("server.key"), .client_ca = At("ca.pem")}});
  const absl::Status publisher = SayAs(server, "publisher");
  EXPECT_TRUE(publisher.ok()) << publisher;
  EXPECT_EQ(SayAs(server, "reader").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(SayAs(server, "").ok());
}

TEST_F(Tls, NoMessageOfAStrangerIsRead) {
  const File tokens(kTokens);
  EchoServer server({.address = "localhost:0",
                     .tls = {.cert = At("server.pem"), .key = At("server.key")},
                     .receive_max_bytes = 1000},
                    {}, tokens.path());
  const auto say = [&](const std::string& token) {
    return Say(*server.Stub({.target = "localhost:" + std::to_string(server.server->port()),
                             .tls = {.ca = At("ca.pem")},
                             .token = token}),
               std::string(5000, 'x'));
  };
  EXPECT_EQ(say("publisher-token-0001").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(say("publisher-token-0002")), "UNAUTHENTICATED");
  EXPECT_EQ(ReasonOf(say("")), "UNAUTHENTICATED");
}

// A certificate that is renewed while the program runs is shown at the next connection.
TEST_F(Tls, ARenewedClientCertificateIsShown) {
  Become("me", "reader");
  // Channels share what reads their files: to another server's port the connection is a new one, and
  // the certificate is what was read last.
  const auto say = [&] {
    EchoServer server(
        {.address = "localhost:0",
         .tls = {.cert = At("server.pem"), .key = At("server.key"), .client_ca = At("ca.pem")}});
    return Say(*server.Stub({.target = "localhost:" + std::to_string(server.server->port()),
                             .tls = {.ca = At("ca.pem"),
                                     .cert = At("me.pem"),
                                     .key = At("me.key"),
                                     .reread_s = 1}}),
               "hello");
  };
  ASSERT_EQ(say().code(), absl::StatusCode::kPermissionDenied);
  Become("me", "publisher");
  WaitUntil([&] { return say().ok(); });
}

TEST_F(Tls, ChannelsOfTheSameFilesShareTheThreadThatReadsThem) {
  const auto threads = [] {
    using Entries = std::filesystem::directory_iterator;
    return std::distance(Entries("/proc/self/task"), Entries());
  };
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  const auto add = [&] {
    channels.push_back(*MakeChannel({.target = "localhost:1", .tls = {.ca = At("ca.pem")}}));
  };
  add();
  const auto before = threads();
  for (int i = 0; i < 10; ++i) add();
  EXPECT_LT(threads() - before, 10) << "gRPC may have started some of its own";
}

TEST_F(Tls, ARenewedServerCertificateIsShown) {
  Become("here", "reader");  // whose name is another
  EchoServer server({.address = "localhost:0",
                     .tls = {.cert = At("here.pem"), .key = At("here.key"), .reread_s = 1}});
  const auto stub = server.Stub({.target = "localhost:" + std::to_string(server.server->port()),
                                 .tls = {.ca = At("ca.pem")}});
  ASSERT_EQ(Say(*stub, "hello").code(), absl::StatusCode::kUnavailable);
  Become("here", "server");
  WaitUntil([&] { return Say(*stub, "hello").ok(); });
}

TEST_F(Tls, ACertificateWithoutItsKeyIsRefused) {
  const auto channel =
      MakeChannel({.target = "localhost:1", .tls = {.ca = At("ca.pem"), .cert = At("reader.pem")}});
  EXPECT_THAT(std::string(channel.status().message()), testing::HasSubstr("needs both"));
}

TEST_F(Tls, FilesThatCannotBeReadAreNamed) {
  auto access = *Access::Open("", true);
  Gate gate(*access);
  const auto server =
      Server::Start({.tls = {.cert = At("none.pem"), .key = At("server.key")}}, gate, {});
  EXPECT_THAT(std::string(server.status().message()), testing::HasSubstr("none.pem"));
}

}  // namespace
}  // namespace lorry::rpc
