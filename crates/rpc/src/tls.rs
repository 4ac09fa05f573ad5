//! TLS of a server, and of a client over HTTP/1.1.

use crate::connection::{BoxedStream, ByteStream};
use crate::pem::TlsPem;
use ferroflow_base::{Result, Status, invalid_argument};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::crypto::ring::default_provider;
pub use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
pub use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How long a client may take for the handshake of TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

fn bad(what: &str, e: &dyn std::fmt::Display) -> Status {
    invalid_argument!("TLS: {what}: {e}")
}

fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let read: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    read.map_err(|e| bad("the certificate", &e))
}

/// The certificates of authorities; `whose` says of what.
fn roots(text: &[u8], whose: &str) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(text)? {
        roots.add(authority).map_err(|e| bad(whose, &e))?;
    }
    Ok(Arc::new(roots))
}

/// What encrypts the connections to an HTTP/1.1 server whose certificate one of these authorities, PEM text, signed.
///
/// # Errors
/// INVALID_ARGUMENT if an authority is unusable.
pub fn tls_connector(authorities: &[u8]) -> Result<TlsConnector> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| bad("the protocol", &e))?
        .with_root_certificates(roots(authorities, "an authority of servers")?)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name that a server's certificate must have.
///
/// # Errors
/// INVALID_ARGUMENT if it is neither a name nor an address.
pub fn server_name(host: &str) -> Result<ServerName<'static>> {
    let name = host.trim_matches(['[', ']']).to_string();
    ServerName::try_from(name).map_err(|e| bad(host, &e))
}

/// What encrypts the connections of a server with this certificate; `protocol` is `h2` or `http/1.1`.
///
/// # Errors
/// INVALID_ARGUMENT if a certificate or the key is unusable.
pub fn tls_acceptor(pem: &TlsPem, protocol: &str) -> Result<TlsAcceptor> {
    let chain = certificates(&pem.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&pem.key).map_err(|e| bad("the key", &e))?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| bad("the protocol", &e))?;
    let builder = match &pem.client_authorities {
        Some(authorities) => {
            let roots = roots(authorities, "an authority of clients")?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            let verifier = verifier.map_err(|e| bad("the authorities of clients", &e))?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| bad("the certificate and the key", &e))?;
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The stream of a client, after the handshake if there is a certificate; `None` if that failed.
pub async fn secured(
    stream: impl ByteStream + 'static,
    tls: Option<&TlsAcceptor>,
) -> Option<BoxedStream> {
    let Some(tls) = tls else {
        return Some(Box::new(stream));
    };
    match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => return Some(Box::new(stream)),
        Ok(Err(e)) => tracing::debug!("a TLS handshake failed: {e}"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
    None
}
