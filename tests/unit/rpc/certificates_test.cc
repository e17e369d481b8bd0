#include "lib/rpc/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "lib/metrics/registry.h"
#include "lib/rpc/credential_metrics.h"
#include "tests/testing/temp_dir.h"

namespace lorry::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Certificates : public testing::Test {
 protected:
  // A file of self-signed certificates that end at these times.
  std::string File(const std::string& name, const std::vector<int64_t>& ends) {
    const std::string path = dir_ / name;
    std::FILE* const file = std::fopen(path.c_str(), "w");
    for (const int64_t end : ends) {
      const std::unique_ptr<X509, decltype(&X509_free)> made(X509_new(), X509_free);
      ASN1_TIME_set(X509_getm_notBefore(made.get()), 0);
      ASN1_TIME_set(X509_getm_notAfter(made.get()), end);
      X509_set_pubkey(made.get(), key_.get());
      X509_sign(made.get(), key_.get(), EVP_sha256());
      PEM_write_X509(file, made.get());
    }
    std::fclose(file);
    return path;
  }

  TempDir dir_;
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key_{EVP_EC_gen("P-256"),
                                                                 EVP_PKEY_free};
};

constexpr int64_t kSoon = 1'800'000'000, kLater = 1'900'000'000;
constexpr int64_t kBeyond2050 = 2'600'000'000;  // which X.509 writes in another way

TEST_F(Certificates, SayWhenTheyEnd) {
  EXPECT_THAT(*CertificateEnds(File("pem", {kLater, kSoon, kBeyond2050})),
              ElementsAre(kLater, kSoon, kBeyond2050));
  EXPECT_FALSE(CertificateEnds(File("empty", {})).ok());
  EXPECT_FALSE(CertificateEnds("/nowhere").ok());
}

// A chain ends with the first of it, an authority that is being replaced with the last.
TEST_F(Certificates, AreWatchedAsTheirFilesAre) {
  metrics::Registry registry({.service = "test", .version = "0"});
  const std::string cert = File("cert", {kLater, kSoon});
  WatchCredentials(registry, {.cert = cert, .client_ca = File("ca", {kSoon, kLater})},
                   File("dialled", {kLater}), "");
  const auto line = [](const char* flag, const char* value) {
    return "lorry_certificate_expiry_timestamp_seconds{flag=\"" + std::string(flag) + "\"} " +
           value + "\n";
  };
  const std::string before = registry.Scrape();
  EXPECT_THAT(before, HasSubstr(line("tls-cert", "1800000000")));
  EXPECT_THAT(before, HasSubstr(line("tls-client-ca", "1900000000")));
  EXPECT_THAT(before, HasSubstr(line("tls-ca", "1900000000")));
  File("cert", {kLater});
  EXPECT_THAT(registry.Scrape(), HasSubstr(line("tls-cert", "1900000000"))) << "was renewed";
  std::filesystem::remove(cert);
  EXPECT_THAT(registry.Scrape(), HasSubstr(line("tls-cert", "0")));
}

TEST_F(Certificates, AreNotSpokenOfWherePlaintextIs) {
  metrics::Registry registry({.service = "test", .version = "0"});
  WatchCredentials(registry, {}, "", "");
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("lorry_certificate_expiry_timestamp_seconds")));
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("lorry_tokens_file_valid")));
}

TEST(TokensFile, IsWatched) {
  const TempDir dir;
  const std::string path = dir / "tokens";
  metrics::Registry registry({.service = "test", .version = "0"});
  WatchCredentials(registry, {}, "", path);
  std::ofstream(path) << "reader reader-token-00000001\n";
  EXPECT_THAT(registry.Scrape(), HasSubstr("lorry_tokens_file_valid 1\n"));
  std::ofstream(path) << "# nobody\n";
  EXPECT_THAT(registry.Scrape(), HasSubstr("lorry_tokens_file_valid 0\n"));
  std::ofstream(path) << "reader short\n";
  EXPECT_THAT(registry.Scrape(), HasSubstr("lorry_tokens_file_valid 0\n"));
}

}  // namespace
}  // namespace lorry::rpc
