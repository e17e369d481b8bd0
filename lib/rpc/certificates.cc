#include "lib/rpc/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::rpc {
namespace {

struct Free {
  void operator()(BIO* file) const { BIO_free(file); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};

}  // namespace

int64_t EndOf(const X509* certificate) {
  tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) return 0;
  return ::timegm(&end);
}

absl::StatusOr<std::vector<int64_t>> CertificateEnds(const std::string& path) {
  std::vector<int64_t> ends;
  const std::unique_ptr<BIO, Free> file(BIO_new_file(path.c_str(), "r"));
  while (file != nullptr) {
    const std::unique_ptr<X509, Free> certificate(
        PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr));
    if (certificate == nullptr) break;
    ends.push_back(EndOf(certificate.get()));
  }
  ERR_clear_error();  // the end of the file is one
  if (!ends.empty()) return ends;
  return Error(absl::StatusCode::kInvalidArgument, "",
               absl::StrCat("no certificate can be read in ", path));
}

absl::StatusOr<int64_t> EndOf(const std::string& path, Holds holds) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<int64_t> ends, CertificateEnds(path));
  const auto [first, last] = std::ranges::minmax(ends);
  return holds == Holds::kChain ? first : last;
}

}  // namespace lorry::rpc
