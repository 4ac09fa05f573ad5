//! A server's certificate and key.

use ferroflow_base::{Result, invalid_argument};
use std::path::PathBuf;

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

/// A server's certificate and key, as PEM text.
#[derive(Clone)]
pub struct TlsPem {
    /// The certificate chain.
    pub certificate: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
    /// The authorities that sign the certificates of clients. If set, clients must have one.
    pub client_authorities: Option<Vec<u8>>,
}

impl TlsOptions {
    /// Reads the files.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a file cannot be read.
    pub fn read(&self) -> Result<TlsPem> {
        let read = |path: &PathBuf| {
            let bytes = std::fs::read(path);
            bytes.map_err(|e| invalid_argument!("cannot read {}: {e}", path.display()))
        };
        Ok(TlsPem {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            client_authorities: self.client_authorities.as_ref().map(read).transpose()?,
        })
    }
}
