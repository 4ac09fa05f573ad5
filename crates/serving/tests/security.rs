//! Encryption, client certificates, tokens, the UNIX socket.

use crate::support;

use ferroflow_model::proto::health::{HealthCheckRequest, HealthCheckResponse};
use ferroflow_model::proto::serving::*;
use ferroflow_serving::{ModelSource, TlsPem};
use ferroflow_testkit::folder::Folder;
use std::path::Path;
use std::sync::Arc;
use support::{World, models, options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

fn half() -> ModelSource {
    ModelSource::latest("half", &models().join("half"))
}

fn file(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../remote/tests/tls");
    std::fs::read(folder.join(name)).unwrap()
}

fn server_pem(demands_certificate: bool) -> TlsPem {
    TlsPem {
        certificate: file("server.pem"),
        key: file("server.key"),
        client_authorities: demands_certificate.then(|| file("ca.pem")),
    }
}

/// Asks for the server's health.
async fn health(channel: Result<Channel, tonic::transport::Error>) -> Result<i32, String> {
    let mut grpc = tonic::client::Grpc::new(channel.map_err(|e| e.to_string())?);
    grpc.ready().await.map_err(|e| e.to_string())?;
    let path = tonic::codegen::http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let request = tonic::Request::new(HealthCheckRequest::default());
    let answer = grpc.unary(request, path, codec).await;
    answer
        .map(|a| a.into_inner().status)
        .map_err(|e| e.to_string())
}

/// Sends a request of the REST API over TLS; returns the status.
async fn https(world: &World, has_certificate: bool) -> Result<String, String> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&file("ca.pem")).unwrap())
        .unwrap();
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match has_certificate {
        true => {
            let chain = vec![CertificateDer::from_pem_slice(&file("server.pem")).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(&file("server.key")).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
        false => config.with_no_client_auth(),
    };
    let stream = tokio::net::TcpStream::connect(world.rest).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let connected = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await;
    let mut stream = connected.map_err(|e| e.to_string())?;
    let body = "{\"instances\": [2]}";
    let request = format!(
        "POST /v1/models/half:predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let sent = stream.write_all(request.as_bytes()).await;
    sent.map_err(|e| e.to_string())?;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer).await;
    read.map_err(|e| e.to_string())?;
    let answer = String::from_utf8(answer).unwrap();
    Ok(answer.split("\r\n").next().unwrap_or_default().to_string())
}

/// Starts a server with certificates and returns whether clients of both protocols are served.
fn check(demands_certificate: bool, has_certificate: bool, is_served: bool) {
    let mut options = options(vec![half()]);
    options.tls = Some(server_pem(demands_certificate));
    options.rest_tls = options.tls.clone();
    let world = World::new(options);
    let (grpc, rest) = world.runtime.block_on(async {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(file("ca.pem")))
            .domain_name("localhost");
        if has_certificate {
            tls = tls.identity(Identity::from_pem(file("server.pem"), file("server.key")));
        }
        let channel = Channel::from_shared(format!("https://{}", world.grpc)).unwrap();
        let channel = channel.tls_config(tls).unwrap().connect().await;
        (health(channel).await, https(&world, has_certificate).await)
    });
    let case = format!("demanded {demands_certificate}, given {has_certificate}");
    match is_served {
        true => {
            assert_eq!(grpc, Ok(1), "{case}");
            assert_eq!(rest.as_deref(), Ok("HTTP/1.1 200 OK"), "{case}");
        }
        false => {
            assert!(grpc.is_err(), "{case}: {grpc:?}");
            assert!(rest.is_err(), "{case}: {rest:?}");
        }
    }
}

#[test]
fn connections_are_encrypted() {
    check(false, false, true);
    check(false, true, true);
    check(true, true, true);
    check(true, false, false);
}

#[test]
fn unusable_certificates_are_reported() {
    let good = server_pem(true);
    let rows: [(TlsPem, &str); 4] = [
        (
            TlsPem {
                certificate: b"rubbish".to_vec(),
                ..good.clone()
            },
            "TLS: the certificate and the key: ",
        ),
        (
            TlsPem {
                key: b"rubbish".to_vec(),
                ..good.clone()
            },
            "TLS: the key: ",
        ),
        (
            TlsPem {
                key: file("ca.pem"),
                ..good.clone()
            },
            "TLS: the key: ",
        ),
        (
            TlsPem {
                client_authorities: Some(Vec::new()),
                ..good
            },
            "TLS: the authorities of clients: ",
        ),
    ];
    for (pem, expected) in rows {
        let error = ferroflow_rpc::tls_acceptor(&pem, "h2").err().unwrap();
        assert!(error.message().starts_with(expected), "{error}");
    }
}

#[test]
fn plain_clients_of_an_encrypted_port_do_not_stop_it() {
    let mut options = options(vec![half()]);
    options.rest_tls = Some(server_pem(false));
    let world = World::new(options);
    let (hangs, mut speaks_http) = (world.connect(), world.connect());
    std::io::Write::write_all(&mut speaks_http, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let answer = world.runtime.block_on(https(&world, false));
    assert_eq!(answer.as_deref(), Ok("HTTP/1.1 200 OK"));
    drop(hangs);
}

#[test]
fn the_unix_socket_serves() {
    let folder = Folder::new("socket");
    let path = folder.0.join("grpc.sock");
    // A server that was killed leaves its socket.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut options = options(vec![half()]);
    options.grpc_socket = Some(path.clone());
    // Only the port is encrypted.
    options.tls = Some(server_pem(true));
    let mut world = World::new(options);
    let at = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    let answer = world
        .runtime
        .block_on(async { health(at.connect().await).await });
    assert_eq!(answer, Ok(1));
    world.stop();
    assert!(!path.exists());

    let mut options = self::options(vec![half()]);
    std::fs::write(&path, b"a file").unwrap();
    options.grpc_socket = Some(path.clone());
    let error = ferroflow_serving::Server::bind(options).err().unwrap();
    assert_eq!(error.code().name(), "UNAVAILABLE");
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
}

#[test]
fn requests_need_the_token() {
    let mut options = options(vec![half()]);
    options.front.bearer_token = Some("secret".to_string());
    let world = World::new(options);
    let predict = |token: &str| {
        let head = format!("POST /v1/models/half:predict HTTP/1.1{token}");
        world.http(&head, b"{\"instances\": [2]}").0
    };
    for (token, status) in [
        ("", 401),
        ("\r\nAuthorization: Bearer no", 401),
        ("\r\nAuthorization: secret", 401),
        ("\r\nAuthorization: Bearer secret", 200),
        ("\r\nAuthorization: bearer secret", 200),
        ("\r\nAuthorization: Basic secret", 401),
        ("\r\nAuthorization: B", 401),
    ] {
        assert_eq!(predict(token), status, "{token}");
    }
    let answer: Result<GetModelStatusResponse, _> = world.call(
        "/tensorflow.serving.ModelService/GetModelStatus",
        GetModelStatusRequest::default(),
    );
    assert_eq!(answer.unwrap_err().code(), tonic::Code::Unauthenticated);
}
