//! Runs the graphs of `tests/graphs/*.jsonl` (and `.jsonl.z`) and compares with what TensorFlow
//! answered; every case with several numbers of threads, optimised and as it is, functional control
//! flow run directly and lowered, compiled to a BEF file and opened again.
//!
//! `CASE=part-of-a-name` runs a part of them; `GPU=1` runs them on NVIDIA's GPU, or an interpreter of its kernels, and a CPU.
//! `oracle/graphs.py` writes the files.

use ferroflow_testkit::driver::replacement_driver;
use ferroflow_testkit::random::Random;
use ferroflow_testkit::{cases, tensors};

use ferroflow_model::GraphFile;
use ferroflow_runtime::{
    Code, CompileOptions, CompileRequest, CompiledModel, DeviceSet, Lower, Result, RunOptions,
    Session, SessionOptions, Signature, StreamDeviceOptions, StreamDevices, Tensor,
};
use prost::Message;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// A step that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Steps that ran from a file.
static COMPILED: AtomicUsize = AtomicUsize::new(0);

/// One way of running every graph.
#[derive(Clone, Copy, Debug)]
struct Variant {
    threads: usize,
    optimize: bool,
    lower: bool,
    /// Whether each step is compiled to a file first. Graphs with state cannot be.
    compiled: bool,
    /// Whether the nodes are placed on several devices at random.
    scattered: bool,
    /// How many of the devices are host streams; the others are CPUs.
    streams: usize,
    /// Whether their operations run late, in a random order.
    shuffled: bool,
    /// Whether nodes are on a GPU that has kernels for them.
    gpu: bool,
}

impl Variant {
    const fn new(threads: usize, optimize: bool, lower: bool) -> Self {
        Variant {
            threads,
            optimize,
            lower,
            compiled: false,
            scattered: false,
            streams: 0,
            shuffled: false,
            gpu: false,
        }
    }

    const fn scattered(threads: usize, optimize: bool) -> Self {
        Variant {
            scattered: true,
            ..Variant::new(threads, optimize, true)
        }
    }

    /// Nodes on a CPU and on host streams.
    const fn on_streams(streams: usize, threads: usize, optimize: bool, shuffled: bool) -> Self {
        Variant {
            streams,
            shuffled,
            ..Variant::scattered(threads, optimize)
        }
    }

    const fn on_gpu(threads: usize, optimize: bool, lower: bool) -> Self {
        Variant {
            gpu: true,
            ..Variant::new(threads, optimize, lower)
        }
    }

    const fn compiled(threads: usize, optimize: bool, lower: bool) -> Self {
        Variant {
            compiled: true,
            ..Variant::new(threads, optimize, lower)
        }
    }
}

const VARIANTS: &[Variant] = &[
    Variant::new(1, false, false),
    Variant::new(1, true, false),
    Variant::new(2, false, false),
    Variant::new(2, true, false),
    Variant::new(4, false, false),
    Variant::new(4, true, false),
    Variant::new(1, false, true),
    Variant::new(1, true, true),
    Variant::new(2, false, true),
    Variant::new(2, true, true),
    Variant::scattered(1, false),
    Variant::scattered(2, true),
    Variant::on_streams(1, 2, true, false),
    Variant::on_streams(3, 1, false, true),
    Variant::on_streams(2, 2, true, true),
    Variant::compiled(2, true, false),
    Variant::compiled(1, true, true),
    Variant::on_gpu(1, false, true),
    Variant::on_gpu(2, true, true),
];

/// The GPU of this machine, with products in full precision; in its place an interpreter of kernels, but those of cuBLASLt and
/// cuDNN.
fn gpu() -> Result<StreamDevices> {
    static GPU: OnceLock<Result<StreamDevices>> = OnceLock::new();
    let open = || {
        ferroflow_runtime::set_tf32(false);
        let options = StreamDeviceOptions {
            memory_limit: Some(4 << 30),
            ..Default::default()
        };
        let gpus = || StreamDevices::gpus(TASK, 1, &options);
        match (gpus(), replacement_driver()) {
            (Err(_), Some(library)) => {
                ferroflow_ptx::attach(&library, 80).expect("the stand-in");
                INTERPRETED.store(true, Ordering::Relaxed);
                std::fs::remove_file(library).expect("just written");
                gpus()
            }
            (gpus, _) => gpus,
        }
    };
    GPU.get_or_init(open).clone()
}

/// Whether the GPU is an interpreter.
static INTERPRETED: AtomicBool = AtomicBool::new(false);

/// Whether an error is that of a library that the interpreter does not have.
fn lacks_library(error: &str) -> bool {
    INTERPRETED.load(Ordering::Relaxed) && error.contains("where the dynamic loader finds it")
}

const TASK: &str = "/job:test/replica:0/task:0";

struct Case {
    name: String,
    /// The results depend on the devices of the nodes, for the reason in the file.
    is_placed: bool,
    graph: Vec<u8>,
    steps: Vec<Step>,
}

#[derive(Clone)]
struct Step {
    feeds: Vec<(String, Tensor)>,
    fetches: Vec<String>,
    targets: Vec<String>,
    /// Runs concurrently with the steps that follow.
    background: bool,
    timeout: Option<Duration>,
    expect: Expect,
}

#[derive(Clone)]
enum Expect {
    /// With the largest difference relative to the largest expected magnitude.
    Outputs(Vec<Tensor>, f64),
    Error {
        code: i64,
        contains: String,
    },
}

fn parse(line: &str) -> tensors::Res<Case> {
    let json: Json = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let text = |v: &Json| v.as_str().map(str::to_string).ok_or("no string");
    let list = |v: &Json| -> tensors::Res<Vec<String>> {
        let items = v.as_array().into_iter().flatten();
        Ok(items.map(text).collect::<Result<_, _>>()?)
    };
    let step = |s: &Json| -> tensors::Res<Step> {
        let feeds = s["feeds"].as_object().ok_or("feeds")?;
        let expect = match s.get("error") {
            Some(e) => Expect::Error {
                code: e["code"].as_i64().ok_or("code")?,
                contains: text(&e["contains"])?,
            },
            None => Expect::Outputs(
                s["outputs"]
                    .as_array()
                    .ok_or("outputs")?
                    .iter()
                    .map(tensors::tensor)
                    .collect::<tensors::Res<_>>()?,
                tensors::number(&s["tol"])?,
            ),
        };
        Ok(Step {
            feeds: feeds
                .iter()
                .map(|(name, v)| Ok((name.clone(), tensors::tensor(v)?)))
                .collect::<tensors::Res<_>>()?,
            fetches: list(&s["fetches"])?,
            targets: list(&s["targets"])?,
            background: s["background"].as_bool().unwrap_or(false),
            timeout: s["timeout_ms"].as_u64().map(Duration::from_millis),
            expect,
        })
    };
    Ok(Case {
        name: text(&json["name"])?,
        is_placed: json.get("placed").is_some(),
        graph: cases::graph(&json)?,
        steps: json["steps"]
            .as_array()
            .ok_or("steps")?
            .iter()
            .map(step)
            .collect::<tensors::Res<_>>()?,
    })
}

fn names(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

fn run(session: &Session, step: &Step) -> Result<Vec<Tensor>> {
    let feeds: Vec<_> = step
        .feeds
        .iter()
        .map(|(n, t)| (n.as_str(), t.clone()))
        .collect();
    let options = RunOptions {
        timeout: Some(step.timeout.unwrap_or(PATIENCE)),
        ..Default::default()
    };
    session.run_with(
        &feeds,
        &names(&step.fetches),
        &names(&step.targets),
        &options,
    )
}

/// The models that the steps of a session are compiled to, one for each signature as in the
/// session.
#[derive(Default)]
struct Models(HashMap<Signature, CompiledModel>);

impl Models {
    /// Compiles what a step needs and runs that; `None` if it has state, which a file has not.
    fn run(
        &mut self,
        session: &Session,
        step: &Step,
        threads: usize,
    ) -> Option<Result<Vec<Tensor>>> {
        let signature = Signature {
            feeds: step.feeds.iter().map(|(name, _)| name.clone()).collect(),
            fetches: step.fetches.clone(),
            targets: step.targets.clone(),
        };
        if let Some(model) = self.0.get(&signature) {
            return Some(run(model.session(), step));
        }
        // The signatures of a session share streams of random numbers; models do not.
        if !self.0.is_empty() && session.graph().iter().any(|(_, n)| n.def.flags.stateful) {
            return None;
        }
        let request = CompileRequest {
            signature: signature.clone(),
            ..Default::default()
        };
        let options = SessionOptions {
            threads,
            ..Default::default()
        };
        let file = match session.compile_to_bytes(&request) {
            Err(e) if e.message().contains("a compiled model cannot hold") => return None,
            other => other,
        };
        Some(file.and_then(|file| {
            let model = CompiledModel::from_bytes(&file, options)?;
            let result = run(model.session(), step);
            self.0.insert(signature, model);
            result
        }))
    }
}

/// Functions of GPUs are their own, as in the rows of `crates/gpu`.
fn compare_on_gpu(expect: &Expect, got: Result<Vec<Tensor>>) -> tensors::Res<()> {
    match expect {
        Expect::Outputs(expected, tol) => {
            compare(&Expect::Outputs(expected.clone(), tol.max(4e-6)), got)
        }
        expect => compare(expect, got),
    }
}

fn compare(expect: &Expect, got: Result<Vec<Tensor>>) -> tensors::Res<()> {
    match (expect, got) {
        (Expect::Error { code, contains }, Err(e)) => {
            let code_fits = *code == 0 || e.code() as i64 == *code;
            if !code_fits || !e.to_string().contains(contains) {
                return Err(format!("expected error {code} with '{contains}', got {e}"));
            }
        }
        (Expect::Error { contains, .. }, Ok(out)) => {
            return Err(format!("expected an error ({contains}), got {out:?}"));
        }
        (Expect::Outputs(..), Err(e)) => return Err(format!("unexpected error {e}")),
        (Expect::Outputs(expected, tol), Ok(got)) => {
            if expected.len() != got.len() {
                return Err(format!(
                    "{} outputs, expected {}",
                    got.len(),
                    expected.len()
                ));
            }
            for (i, (e, g)) in expected.iter().zip(&got).enumerate() {
                tensors::compare(e, g, *tol).map_err(|m| format!("fetch {i}: {m}"))?;
            }
        }
    }
    Ok(())
}

/// The devices of a scattered graph.
const N_DEVICES: usize = 3;

/// The graph of a case with each node on some device.
fn scattered(case: &Case, devices: &[String]) -> Result<Vec<u8>> {
    let mut graph = GraphFile::from_bytes(case.graph.clone())?.graph;
    let mut random = Random(1 + case.name.len() as u64 + graph.node.len() as u64);
    for node in &mut graph.node {
        node.device
            .clone_from(&devices[random.below(devices.len())]);
    }
    Ok(graph.encode_to_vec())
}

/// Runs the steps of a case in one session.
fn check(case: &Case, variant: Variant) -> tensors::Res<()> {
    let compile = CompileOptions {
        optimize: variant.optimize,
        lower: match variant.lower {
            true => Lower::Always,
            false => Lower::Never,
        },
        ..CompileOptions::all()
    };
    let n_cpus = match (variant.scattered, variant.streams) {
        _ if variant.gpu => 1,
        (false, _) => 0,
        (true, 0) => N_DEVICES,
        (true, _) => 1,
    };
    let shuffle = variant.shuffled.then_some(case.name.len() as u64);
    let stream_options = StreamDeviceOptions {
        shuffle,
        ..Default::default()
    };
    let streams = match variant.gpu {
        true => gpu(),
        false => StreamDevices::host_streams(TASK, variant.streams, &stream_options),
    };
    let streams = streams.map_err(|e| e.to_string())?;
    let cpus = (0..n_cpus).map(|i| format!("{TASK}/device:CPU:{i}"));
    let mut names: Vec<String> = cpus.chain(streams.names().map(str::to_string)).collect();
    if variant.gpu {
        names.reverse();
    }
    let options = SessionOptions {
        threads: variant.threads,
        compile,
        devices: DeviceSet {
            names: names.clone(),
            soft: true,
            kernels: streams.kernels(),
            ..Default::default()
        },
        stream_devices: streams,
        ..Default::default()
    };
    let graph = match variant.scattered {
        true => scattered(case, &names).map_err(|e| e.to_string())?,
        false => case.graph.clone(),
    };
    let session = Session::from_bytes(graph, options)
        .map(Arc::new)
        .map_err(|e| format!("import: {e}"))?;
    if variant.compiled {
        if case.steps.iter().any(|s| s.background) {
            return Ok(());
        }
        let mut models = Models::default();
        for (i, step) in case.steps.iter().enumerate() {
            let Some(got) = models.run(&session, step, variant.threads) else {
                return Ok(());
            };
            COMPILED.fetch_add(1, Ordering::Relaxed);
            compare(&step.expect, got).map_err(|m| format!("step {i}: {m}"))?;
        }
        return Ok(());
    }
    let (mut background, mut result) = (Vec::new(), Ok(()));
    let compare = match variant.gpu {
        true => compare_on_gpu,
        false => compare,
    };
    for (i, step) in case.steps.iter().enumerate() {
        let at = move |m: String| format!("step {i}: {m}");
        if step.background {
            let (session, step) = (session.clone(), step.clone());
            background.push(std::thread::spawn(move || {
                compare(&step.expect, run(&session, &step)).map_err(at)
            }));
            settle();
        } else if result.is_ok() {
            result = compare(&step.expect, run(&session, step)).map_err(at);
        }
    }
    for thread in background {
        let of_thread = thread.join().map_err(|_| "a step panicked".to_string())?;
        result = result.and(of_thread);
    }
    result
}

/// Waits until a step in the background can do no more before another step helps it: all threads
/// but this one sleep, however long a busy machine takes to get there.
fn settle() {
    const PAUSE: Duration = Duration::from_millis(5);
    // Linux tells the state of each thread; elsewhere time has to do.
    if !Path::new("/proc/thread-self/stat").exists() {
        return std::thread::sleep(20 * PAUSE);
    }
    let start = Instant::now();
    let mut looks = 0;
    while looks < 4 && start.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
        looks = match others_sleep() {
            Some(false) => 0,
            Some(true) | None => looks + 1,
        };
    }
}

/// Whether no other thread of this process runs or could run.
fn others_sleep() -> Option<bool> {
    let this = std::fs::read_link("/proc/thread-self").ok()?;
    for thread in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread that ended meanwhile has no file any more.
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else {
            continue;
        };
        let state = stat.rsplit(')').next()?.trim_start().chars().next()?;
        if Some(thread.file_name().as_os_str()) != this.file_name() && state != 'S' {
            return Some(false);
        }
    }
    Some(true)
}

/// Checks the case in every variant; a hang is an error too.
fn check_all(number: usize, case: Case) -> tensors::Res<()> {
    let case = Arc::new(case);
    let on_gpu = std::env::var_os("GPU").is_some();
    let runs = |v: &Variant| v.gpu == on_gpu && (!(v.scattered || v.gpu) || !case.is_placed);
    // Each case runs on one of the kinds of streams, unless cases are chosen.
    let one = std::env::var("CASE").is_err().then_some(1 + number % 3);
    let is_chosen = |v: &Variant| v.streams == 0 || one.is_none_or(|n| n == v.streams);
    for &variant in VARIANTS.iter().filter(|v| runs(v) && is_chosen(v)) {
        let (sender, receiver) = mpsc::channel();
        let of_thread = case.clone();
        let thread = std::thread::spawn(move || {
            // The receiver is gone only when the test failed already.
            let _ = sender.send(check(&of_thread, variant));
        });
        let result = match receiver.recv_timeout(PATIENCE * 2) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Timeout) => Err("hangs".to_string()),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let panic = thread.join().err();
                let text = panic.as_ref().and_then(|p| p.downcast_ref::<String>());
                Err(format!("panic: {text:?}"))
            }
        };
        result.map_err(|e| format!("{} ({variant:?}): {e}", case.name))?;
    }
    Ok(())
}

#[test]
fn graphs() {
    let filter = std::env::var("CASE").unwrap_or_default();
    let (mut n_passed, mut n_skipped, mut failures) = (0, 0, Vec::new());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graphs");
    for line in cases::lines(&folder) {
        let case = parse(&line).unwrap_or_else(|e| panic!("{e} in {line:.60}"));
        if !case.name.contains(&filter) {
            continue;
        }
        match check_all(n_passed, case) {
            Ok(()) => n_passed += 1,
            Err(e) if lacks_library(&e) => n_skipped += 1,
            Err(e) => failures.push(e),
        }
    }
    let n_failed = failures.len();
    println!("{n_passed} graphs passed, {n_failed} failed, {n_skipped} without cuBLASLt or cuDNN");
    let n_compiled = COMPILED.load(Ordering::Relaxed);
    println!("{n_compiled} steps ran from a file");
    let on_gpu = std::env::var_os("GPU").is_some();
    assert!(n_compiled > 0 || on_gpu || !filter.is_empty());
    assert!(
        n_passed + failures.len() > 0,
        "CASE={filter} matches no graph"
    );
    let shown = failures[..failures.len().min(40)].join("\n");
    assert!(
        failures.is_empty(),
        "{} graphs fail:\n{shown}",
        failures.len()
    );
}

#[test]
fn comparisons_can_fail() {
    let one = || vec![Tensor::scalar(1.0f32)];
    let expect = Expect::Outputs(one(), 1e-5);
    assert!(compare(&expect, Ok(one())).is_ok());
    assert!(compare(&expect, Ok(vec![Tensor::scalar(1.1f32)])).is_err());
    assert!(compare(&expect, Ok(vec![])).is_err());
    let error = Expect::Error {
        code: Code::OutOfRange as i64,
        contains: "gone".into(),
    };
    let e = |text: &str| Err(ferroflow_base::out_of_range!("{text}"));
    assert!(compare(&error, e("is gone")).is_ok());
    assert!(compare(&error, e("is here")).is_err());
    assert!(compare(&error, Ok(one())).is_err());
}
