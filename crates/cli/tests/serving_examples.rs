//! The files of `examples/serving`: the flags of the manifest start a server that answers its probes, and SIGTERM right
//! after the server's first line lets it end in order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn example(name: &str) -> String {
    std::fs::read_to_string(root().join("examples/serving").join(name)).expect("an example")
}

/// The values of `key: value` lines of a manifest.
fn values<'a>(manifest: &'a str, key: &str) -> Vec<&'a str> {
    let start = format!("{key}: ");
    let tail = |line: &'a str| line.split_once(&start).map(|(_, rest)| rest);
    let value = |rest: &'a str| rest.split([',', ' ', '}']).next().unwrap_or(rest);
    manifest.lines().filter_map(tail).map(value).collect()
}

/// A server, killed on drop if it still runs.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(args: &[String]) -> Server {
        let mut server = Command::new(env!("CARGO_BIN_EXE_ferroflow"));
        server.args(["serve", "--host=127.0.0.1", "--port=0", "--rest-api-port=0"]);
        server
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Server(server.stderr(Stdio::piped()).spawn().expect("the binary"))
    }

    /// Sends SIGTERM and returns how the server ended and what it logged.
    fn terminate(mut self) -> (bool, String) {
        let kill = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(kill.expect("kill").success());
        let mut log = String::new();
        let mut stderr = self.0.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut log).expect("text");
        (self.0.wait().expect("an end").success(), log)
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a server");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.lines().next().unwrap_or_default().to_string()
}

#[test]
fn the_manifest_starts_a_server_that_answers_its_probes() {
    let models = root().join("crates/serving/tests/models");
    let folder = std::env::temp_dir().join(format!("ferroflow-manifest-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = example("models.config").replace("/models", &models.display().to_string());
    std::fs::write(folder.join("models.config"), config).expect("written");
    let manifest = example("kubernetes.yaml");
    let flag = |line: &str| line.trim().strip_prefix("- --").map(|f| format!("--{f}"));
    let args: Vec<String> = manifest.lines().filter_map(flag).collect();
    assert_eq!(args.len(), 4, "{args:?}");
    let place = |arg: &String| arg.replace("/models/", &format!("{}/", folder.display()));
    let mut server = Server::start(&args.iter().map(place).collect::<Vec<_>>());
    let stdout = BufReader::new(server.0.stdout.take().expect("a pipe"));
    let line =
        |l: std::io::Result<String>| l.ok()?.strip_prefix("REST http://").map(str::to_string);
    let address = stdout.lines().find_map(line).expect("an address");
    let mut paths = values(&manifest, "path");
    let metrics = values(&manifest, "prometheus.io/path");
    paths.extend(metrics);
    assert!(paths.len() >= 4, "{paths:?}");
    // Models are loaded when the address is printed, so that the server is ready.
    for path in paths {
        assert_eq!(get(&address, path), "HTTP/1.1 200 OK", "{path}");
    }
    let (good, log) = server.terminate();
    assert!(good && log.contains("stopping"), "{log}");
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_signal_after_the_first_line_ends_the_server_in_order() {
    let batching = format!(
        "--batching-parameters-file={}",
        root().join("examples/serving/batching.config").display()
    );
    let half = root().join("crates/serving/tests/models/half");
    for _ in 0..8 {
        let model = format!("--model=half={}", half.display());
        let args = [model, "--enable-batching".to_string(), batching.clone()];
        let mut server = Server::start(&args);
        let mut line = String::new();
        let mut stdout = BufReader::new(server.0.stdout.take().expect("a pipe"));
        stdout.read_line(&mut line).expect("a line");
        assert!(line.starts_with("GRPC "), "{line}");
        let (good, log) = server.terminate();
        assert!(good && log.contains("stopping"), "{log}");
    }
}

#[test]
fn the_container_starts_the_server_with_its_flags() {
    let file = example("Containerfile");
    let words = |start: &str| {
        let line = file.lines().find(|l| l.starts_with(start)).expect(start);
        let list = line.strip_prefix(start).unwrap_or_default();
        let unquoted = list.replace(['[', ']', '"', ','], " ");
        unquoted
            .split_whitespace()
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(words("ENTRYPOINT"), ["/ferroflow", "serve"]);
    let command = words("CMD");
    let help = Command::new(env!("CARGO_BIN_EXE_ferroflow"))
        .args(["serve", "--help"])
        .output();
    let help = String::from_utf8(help.expect("the binary").stdout).expect("text");
    for flag in command.iter().filter(|w| w.starts_with("--")) {
        assert!(help.contains(&format!("{flag} ")), "{flag}");
    }
    let manifest = example("kubernetes.yaml");
    for port in words("EXPOSE") {
        assert!(
            values(&manifest, "containerPort").contains(&&*port),
            "{port}"
        );
    }
}
