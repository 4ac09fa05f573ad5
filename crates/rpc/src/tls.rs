//! TLS of a server.

use ferroflow_base::{Result, invalid_argument};
use std::path::PathBuf;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

/// The files of a server's certificate and key.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// PEM file with the authorities that sign the certificates of clients. If set, clients must have one.
    pub client_authorities: Option<PathBuf>,
}

/// Reads the files.
///
/// # Errors
/// INVALID_ARGUMENT if a file cannot be read.
pub fn tls_config(options: &TlsOptions) -> Result<ServerTlsConfig> {
    let read = |path: &PathBuf| {
        let bytes = std::fs::read(path);
        bytes.map_err(|e| invalid_argument!("cannot read {}: {e}", path.display()))
    };
    let identity = Identity::from_pem(read(&options.certificate)?, read(&options.key)?);
    let mut config = ServerTlsConfig::new().identity(identity);
    if let Some(authorities) = &options.client_authorities {
        config = config.client_ca_root(Certificate::from_pem(read(authorities)?));
    }
    Ok(config)
}
