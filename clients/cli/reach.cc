#include "clients/cli/reach.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <csignal>
#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/rpc/certificates.h"

namespace lorry::cli {
namespace {

// A handshake with a service that lives takes milliseconds; this is for a diagnosis and never for a
// call.
constexpr int kLookS = 3;
constexpr unsigned kNapMs = 20;
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(BIO* connection) const { BIO_free_all(connection); }
};

// OpenSSL writes to a socket as to a file: a server that hangs up meanwhile would end this process by
// SIGPIPE. Of this thread alone, while it lives.
class NoBrokenPipes {
 public:
  NoBrokenPipes() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipes() {
    const timespec at_once{};
    (void)sigtimedwait(&pipe_, nullptr, &at_once);  // what came would be delivered now
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipes(const NoBrokenPipes&) = delete;
  NoBrokenPipes& operator=(const NoBrokenPipes&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

// What one handshake showed.
struct Handshake {
  bool done = false;
  long verdict = X509_V_OK;  // on the server's certificate
  int reason = 0;            // OpenSSL's, where TLS itself failed
  bool hangs_up = false;     // after it: a client's certificate is judged only then
  std::optional<int64_t> certificate_end = {};
};

absl::Status Failure(const std::string& message) {
  return Error(absl::StatusCode::kFailedPrecondition, "TLS_FAILED", message);
}

Handshake Shake(const std::string& address, const std::string& host, const rpc::ClientTls& tls) {
  const NoBrokenPipes quiet;
  Handshake shown;
  const std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_client_method()));
  if (!tls.ca.empty()) {
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_load_verify_locations(context.get(), tls.ca.c_str(), nullptr);
  }
  if (!tls.cert.empty() && !tls.key.empty()) {
    SSL_CTX_use_certificate_chain_file(context.get(), tls.cert.c_str());
    SSL_CTX_use_PrivateKey_file(context.get(), tls.key.c_str(), SSL_FILETYPE_PEM);
  }
  const std::unique_ptr<BIO, Free> connection(BIO_new_ssl_connect(context.get()));
  SSL* ssl = nullptr;
  BIO_get_ssl(connection.get(), &ssl);
  BIO_set_conn_hostname(connection.get(), address.c_str());
  SSL_set_alpn_protos(ssl, kHttp2, sizeof(kHttp2));
  SSL_set_tlsext_host_name(ssl, host.c_str());
  X509_VERIFY_PARAM* names = SSL_get0_param(ssl);
  if (X509_VERIFY_PARAM_set1_ip_asc(names, host.c_str()) != 1) SSL_set1_host(ssl, host.c_str());
  ERR_clear_error();
  BIO_set_nbio(connection.get(), 1);
  shown.done = BIO_do_connect_retry(connection.get(), kLookS, kNapMs) == 1;
  shown.verdict = SSL_get_verify_result(ssl);
  if (const unsigned long error = ERR_peek_error(); ERR_GET_LIB(error) == ERR_LIB_SSL) {
    shown.reason = ERR_GET_REASON(error);
  }
  if (const X509* shows = SSL_get0_peer_certificate(ssl); shows != nullptr) {
    shown.certificate_end = rpc::EndOf(shows);
  }
  if (!shown.done) return shown;
  char first = 0;  // an HTTP/2 server speaks first
  const time_t until = std::time(nullptr) + kLookS;
  int read = BIO_read(connection.get(), &first, 1);
  while (read < 0 && BIO_should_retry(connection.get()) &&
         BIO_wait(connection.get(), until, kNapMs) == 1) {
    read = BIO_read(connection.get(), &first, 1);
  }
  shown.hangs_up = read <= 0 && !BIO_should_retry(connection.get());
  return shown;
}

// Of "host:port"; empty where it is a path.
std::string HostOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || address.find('/') != std::string::npos) return "";
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

std::string Advice(long verdict, const std::string& host) {
  switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "Renew it; the service reads the new file within a minute.";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "Compare the clocks of both machines.";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::StrCat("Dial a name that the certificate holds, or add ", host,
                          " to its subject alternative names.");
    default:
      return "Give the authority that signed it as --tls-ca (LORRY_CA_FILE).";
  }
}

}  // namespace

absl::Status CheckTls(const std::string& address, const rpc::ClientTls& tls) {
  const std::string host = HostOf(address);
  if (host.empty()) return absl::OkStatus();
  const Handshake shown = Shake(address, host, tls);
  if (tls.empty()) {
    if (!shown.done) return absl::OkStatus();
    return Failure(absl::StrCat(address,
                                " speaks TLS: give --tls-ca (LORRY_CA_FILE), the authority "
                                "that signed its certificate"));
  }
  if (shown.verdict != X509_V_OK) {
    return Failure(absl::StrCat("the certificate of ", address,
                                " is not trusted: ", X509_verify_cert_error_string(shown.verdict),
                                ". ", Advice(shown.verdict, host)));
  }
  if (shown.reason == SSL_R_WRONG_VERSION_NUMBER) {
    return Failure(absl::StrCat(address,
                                " speaks plaintext: leave --tls-ca, --tls-cert and "
                                "--tls-key out (LORRY_CA_FILE and so on)"));
  }
  if (shown.done && shown.hangs_up) {
    return Failure(absl::StrCat(
        address, " hangs up after the handshake: ",
        tls.cert.empty()
            ? "it seems to ask for a client certificate; give --tls-cert and --tls-key "
              "(LORRY_CERT_FILE, LORRY_KEY_FILE)"
            : absl::StrCat("it seems not to trust this client's certificate, ", tls.cert)));
  }
  return absl::OkStatus();
}

std::optional<int64_t> ShownCertificateEnd(const std::string& address, const rpc::ClientTls& tls) {
  const std::string host = HostOf(address);
  return host.empty() ? std::nullopt : Shake(address, host, tls).certificate_end;
}

}  // namespace lorry::cli
