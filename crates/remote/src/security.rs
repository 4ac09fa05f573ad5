//! [`Security`]: how the tasks of a cluster trust each other.

use crate::device::ServerDef;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_rpc::{BoxedStream, HttpRequest, TlsPem};
use std::fmt;
use std::net::SocketAddr;
pub(crate) use tls::Encryption;
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Endpoint;

/// How connections to other tasks are protected. Tasks of TensorFlow's know neither TLS nor tokens: a cluster
/// with some of them has the default, which is none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// The authorities, as PEM text, that sign the certificates of tasks. If set, connections to other tasks
    /// are encrypted.
    pub authorities: Option<Vec<u8>>,
    /// A secret that all tasks share. If set, calls without it are refused, except those of clients on the
    /// same machine to the master.
    pub token: Option<String>,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tls, token) = (self.authorities.is_some(), self.token.is_some());
        write!(f, "Security {{ tls: {tls}, token: {token} }}")
    }
}

/// The header with the token.
const HEADER: &str = "authorization";

impl Security {
    /// What to connect to the task at `address`.
    pub(crate) fn endpoint(&self, address: &str) -> Result<Endpoint> {
        let scheme = match self.authorities {
            Some(_) => "https",
            None => "http",
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"));
        let endpoint = endpoint.map_err(|e| invalid_argument!("address '{address}': {e}"))?;
        match &self.authorities {
            Some(authorities) => tls::connect(endpoint, authorities)
                .map_err(|e| e.note(format!("connecting to '{address}'"))),
            None => Ok(endpoint),
        }
    }

    /// The value of the header, if there is a token.
    pub(crate) fn header(&self) -> Result<Option<MetadataValue<Ascii>>> {
        let value = self.token.as_ref().map(|token| {
            MetadataValue::try_from(format!("Bearer {token}")).map_err(|_| {
                invalid_argument!("the token has characters that a header cannot have")
            })
        });
        value.transpose()
    }

    /// Adds the token to a request.
    pub(crate) fn sign<T>(&self, request: &mut tonic::Request<T>) -> Result<()> {
        if let Some(value) = self.header()? {
            request.metadata_mut().insert(HEADER, value);
        }
        Ok(())
    }

    /// Whether a task that has this token may open a link.
    pub(crate) fn has_token(&self, given: &str) -> bool {
        let token = self.token.as_deref().unwrap_or_default();
        is_equal(given.as_bytes(), token.as_bytes())
    }

    /// Whether a call may be answered. `from_clients` calls need no token on the same machine.
    pub(crate) fn admits(&self, request: &HttpRequest, from_clients: bool) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let given = request.headers().get(HEADER).map(|v| v.as_bytes());
        let given = given.and_then(|v| v.strip_prefix(b"Bearer "));
        if given.is_some_and(|given| is_equal(given, token.as_bytes())) {
            return true;
        }
        let origin = request.extensions().get::<Origin>();
        from_clients && origin.is_some_and(|from| from.0.ip().is_loopback())
    }
}

/// The address of the client, in the extensions of its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin(pub(crate) SocketAddr);

#[cfg(feature = "tls")]
mod tls {
    use super::*;
    use tonic::transport::{Certificate, ClientTlsConfig};

    pub(super) fn connect(endpoint: Endpoint, authorities: &[u8]) -> Result<Endpoint> {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities));
        let configured = endpoint.tls_config(tls);
        configured.map_err(|e| invalid_argument!("TLS: {e}"))
    }

    /// Encrypts the connections of a server.
    #[derive(Clone)]
    pub(crate) struct Encryption(ferroflow_rpc::TlsAcceptor);

    impl Encryption {
        /// # Errors
        /// INVALID_ARGUMENT if the certificate or the key is unusable.
        pub(crate) fn new(pem: &TlsPem) -> Result<Encryption> {
            ferroflow_rpc::tls_acceptor(pem, "h2").map(Encryption)
        }

        /// Does the handshake; `None` if it failed.
        pub(crate) async fn begin(&self, stream: TcpStream) -> Option<BoxedStream> {
            ferroflow_rpc::secured(stream, Some(&self.0)).await
        }
    }
}

/// Connections are not encrypted.
#[cfg(not(feature = "tls"))]
mod tls {
    use super::*;
    use ferroflow_base::{Status, unimplemented_error};

    fn missing() -> Status {
        unimplemented_error!("this build of Ferroflow has no TLS")
    }

    pub(super) fn connect(_endpoint: Endpoint, _authorities: &[u8]) -> Result<Endpoint> {
        Err(missing())
    }

    #[derive(Clone)]
    pub(crate) enum Encryption {}

    impl Encryption {
        /// # Errors
        /// UNIMPLEMENTED.
        pub(crate) fn new(_pem: &TlsPem) -> Result<Encryption> {
            Err(missing())
        }

        pub(crate) async fn begin(&self, _stream: TcpStream) -> Option<BoxedStream> {
            match *self {}
        }
    }
}

/// Compares without telling by the time it takes where the first difference is.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |acc, (a, b)| acc | (a ^ b));
    a.len() == b.len() && differences == 0
}

impl ServerDef {
    /// The same task, with protected connections to the others.
    #[must_use]
    pub fn with_security(self, security: Security) -> Self {
        ServerDef { security, ..self }
    }
}
