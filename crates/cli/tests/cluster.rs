//! `ferroflow cluster up`, and servers whose task is in the environment, as the manifest for Kubernetes has it.

use ferroflow_model::graph_from_text;
use ferroflow_model::proto::ConfigProto;
use ferroflow_remote::{GrpcSession, GrpcStep};
use ferroflow_runtime::{Signature, Tensor};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(args: &[&str], variables: &[(&str, &str)]) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_ferroflow"))
            .args(args)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Process(child.expect("starts"))
    }

    /// Its lines up to the first that begins with `last`.
    fn lines_until(&mut self, last: &str) -> Vec<String> {
        let out = self.0.stdout.as_mut().expect("a pipe");
        let mut lines = Vec::new();
        for line in BufReader::new(out).lines() {
            lines.push(line.expect("text"));
            if lines[lines.len() - 1].starts_with(last) {
                return lines;
            }
        }
        panic!("no line {last}: {lines:?}");
    }
}

fn terminate(process: &mut Process) -> Option<i32> {
    let id = process.0.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status();
    assert!(sent.expect("kill runs").success());
    process.0.wait().expect("ends").code()
}

#[test]
fn up_starts_and_stops_all_tasks() {
    let mut up = Process::start(&["cluster", "up", "2", "--ps", "1"], &[]);
    let lines = up.lines_until("CLUSTER");
    let tasks: Vec<&String> = lines.iter().filter(|l| l.contains("grpc://")).collect();
    let names: Vec<&str> = tasks.iter().filter_map(|l| l.split(' ').next()).collect();
    assert_eq!(
        names,
        ["/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"]
    );
    let address = |line: &&String| line.split("grpc://").nth(1).map(str::to_string);
    let addresses: Vec<String> = tasks.iter().filter_map(address).collect();
    for address in &addresses {
        TcpStream::connect(address).expect("the task listens");
    }
    assert_eq!(terminate(&mut up), Some(0));
    for address in &addresses {
        assert!(TcpStream::connect(address).is_err(), "{address} is open");
    }
}

/// Waits until nothing listens at an address.
fn await_end(address: &str) {
    let start = std::time::Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(start.elapsed().as_secs() < 60, "{address} stays open");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn tasks_end_with_the_process_that_started_them() {
    let mut up = Process::start(&["cluster", "up", "2"], &[]);
    let lines = up.lines_until("CLUSTER");
    drop(up);
    let addresses = lines.iter().filter_map(|l| l.split("grpc://").nth(1));
    assert_eq!(addresses.clone().count(), 2);
    addresses.for_each(await_end);
}

/// A step that waits for an element of a queue that stays empty, on task 1.
const WAITS: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'y' op: 'Neg' input: 'x' device: '/job:w/task:1' attr { key: 'T' value { type: DT_FLOAT } } }
    node { name: 'q' op: 'FIFOQueueV2' device: '/job:w/task:1'
      attr { key: 'component_types' value { list { type: DT_FLOAT } } } }
    node { name: 'd' op: 'QueueDequeueV2' input: 'q' device: '/job:w/task:1'
      attr { key: 'component_types' value { list { type: DT_FLOAT } } } }
    node { name: 'z' op: 'Neg' input: 'd' device: '/job:w/task:0' attr { key: 'T' value { type: DT_FLOAT } } }";

#[test]
fn the_error_of_a_step_names_the_task_that_was_killed() {
    let ports = [free_port(), free_port()];
    let cluster = format!("w=127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1]);
    let start = |index: &str| {
        let named = ["--job-name", "w", "--task-index", index];
        let args = [&["server", "--cluster", &cluster][..], &named].concat();
        let mut task = Process::start(&args, &[]);
        task.lines_until("TARGET");
        task
    };
    let (_first, second) = (start("0"), start("1"));
    let target = format!("grpc://127.0.0.1:{}", ports[0]);
    let session = GrpcSession::new(&target, ConfigProto::default()).expect("an address");
    let graph = graph_from_text(WAITS).expect("valid");
    session.extend(graph).expect("a session");
    let step = |feeds: &[&str], fetch: &str, args: Vec<Tensor>| {
        let signature = Signature {
            feeds: feeds.iter().map(ToString::to_string).collect(),
            fetches: vec![fetch.to_string()],
            targets: Vec::new(),
        };
        session.run(GrpcStep::new(signature, args))
    };
    let (found, _) = step(&["x:0"], "y:0", vec![Tensor::scalar(2f32)]).expect("runs");
    assert_eq!(found[0].to_scalar::<f32>().expect("a float"), -2.0);
    // Whether the step runs by then or not: it cannot end without task 1.
    let error = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| step(&[], "z:0", Vec::new()));
        drop(second);
        waiting.join().expect("no panic").expect_err("no result")
    });
    let text = error.message();
    assert!(text.contains("/job:w/replica:0/task:1"), "{text}");
}

#[test]
fn launchers_say_which_task_it_is() {
    let port = free_port().to_string();
    let args = ["server", "--first-port", &port];
    let mpi = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    let mut server = Process::start(&args, &mpi);
    let lines = server.lines_until("TARGET");
    assert_eq!(lines, [format!("TARGET grpc://127.0.0.1:{port}")]);
}

/// A port that nothing listens on.
fn free_port() -> u16 {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    free.local_addr().expect("bound").port()
}

/// The value of the environment variable TF_CONFIG in a container of a manifest, and the arguments of the container.
fn containers(manifest: &str) -> Vec<(Vec<String>, String)> {
    let after = |lines: &[&str], start: &str| {
        let mut lines = lines.iter().map(|l| l.trim());
        let found = lines.find_map(|l| l.strip_prefix(start).map(str::to_string));
        found.unwrap_or_else(|| panic!("no {start} in {lines:?}"))
    };
    let lines: Vec<&str> = manifest.lines().collect();
    let starts = lines.iter().enumerate();
    let starts = starts.filter(|(_, l)| l.trim() == "- name: task");
    let container = |(at, _)| {
        let lines = &lines[at..];
        assert_eq!(after(lines, "command: "), "[/ferroflow]");
        let args = after(lines, "args: ").replace(['[', ']', '"'], "");
        let config = lines.iter().position(|l| l.trim() == "- name: TF_CONFIG");
        let value = after(&lines[config.expect("TF_CONFIG")..], "value: ");
        let args = args.split(", ").map(str::to_string).collect();
        (args, value.trim_matches('\'').to_string())
    };
    starts.map(container).collect()
}

#[test]
fn the_manifest_starts_each_task_and_answers_its_probes() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cluster");
    let manifest = std::fs::read_to_string(folder.join("kubernetes.yaml")).expect("an example");
    let tasks = |line: &str| line.trim().strip_prefix("{\"worker\"").map(str::len);
    let cluster = manifest.lines().find(|l| tasks(l).is_some());
    let mut cluster = cluster.expect("a cluster").trim().to_string();
    while let Some(end) = cluster.find(".ferroflow:2222\"") {
        let start = cluster[..end].rfind('"').expect("a name");
        let name = start + 1..end + ".ferroflow:2222".len();
        cluster.replace_range(name, &format!("127.0.0.1:{}", free_port()));
    }
    let containers = containers(&manifest);
    assert_eq!(containers.len(), 2);
    for ((args, config), index) in containers.iter().zip([1, 0]) {
        // As Kubernetes expands variables.
        let config = config.replace("$(CLUSTER)", &cluster);
        let config = config.replace("$(INDEX)", &index.to_string());
        let monitor = free_port().to_string();
        let args: Vec<&str> = args
            .iter()
            .map(|arg| match arg.as_str() {
                "2223" => &monitor,
                arg => arg,
            })
            .collect();
        let mut task = Process::start(&args, &[("TF_CONFIG", &config)]);
        let target = task.lines_until("TARGET").pop().unwrap_or_default();
        let port = target.rsplit(':').next().unwrap_or_default();
        assert!(
            cluster.contains(&format!(":{port}\"")),
            "{target} {cluster}"
        );
        let mut probe = TcpStream::connect(format!("127.0.0.1:{monitor}")).expect("a monitor");
        let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        std::io::Write::write_all(&mut probe, request).expect("sent");
        let status = BufReader::new(probe).lines().next();
        assert_eq!(status.expect("an answer").expect("text"), "HTTP/1.1 200 OK");
        assert_eq!(terminate(&mut task), Some(0));
    }
}
