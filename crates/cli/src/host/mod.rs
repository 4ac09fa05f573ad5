//! Host programs on the command line: `translate`, `exec`, `opt`, and TFRT's program names.

mod options;

use crate::model::{Model, RunArgs};
use ferroflow_base::{Status, invalid_argument};
use ferroflow_runtime::host::bef::{self, FileBytes};
use ferroflow_runtime::host::{
    AllocatorType, Config, Driver, ModelCall, TextOptions, TfrtState, TraceLevel, bef_to_mlir,
    host_registry, mlir, mlir_to_bef, optimize, work_queue,
};
use ferroflow_runtime::{CompiledModel, SessionOptions};
use ferroflow_tensor::MappedFile;
use options::Options;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

const TRANSLATE: &str = "\
Translates host programs between MLIR text and BEF.

Usage: ferroflow translate --mlir-to-bef|--bef-to-mlir [OPTIONS] [FILE]

FILE is standard input if it is missing or `-`; the result goes to standard output.

Options:
  --mlir-to-bef                 Text to BEF
  --bef-to-mlir                 BEF to text
  -o FILE                       Writes to FILE
  --split-input-file            The text is several programs with `// -----` between them
  --verify-diagnostics          Comments `expected-error {{...}}` must be met, and may be
  --streams                     Says which kernels run on one thread, as programs with costs do
  --disable-optional-sections   Leaves out names and types of attributes and registers
  --mlir-print-op-generic       Writes text in the form that all operations have
  --mlir-print-debuginfo        Writes behind each operation where it stands
";

const EXEC: &str = "\
Runs the functions of a BEF file that take no arguments, each as a test of its own. A compiled model is
one function, main, which runs with the tensors that it is fed.

Usage: ferroflow exec [OPTIONS] [FILE]

FILE is standard input if it is missing or `-`.

Options:
  --work_queue_type=s|mstd[:THREADS[,BLOCKING[,pin]]]
                                                  One thread or several, each on its own processor
                                                  if pinned (default: s)
  --functions=NAME,...                            Only these functions
  --test_init_function=NAME                       Runs this function first
  --host_allocator_type=malloc|test_fixed_size_1k|profiled_allocator|leak_check_allocator|
                        caching_allocator
  --shared_libs=FILE,...                          Loads kernels from shared libraries, which are written
                                                  against ferroflow_kernels.h
  --feed=NAME=VALUE                               Feeds a tensor of a compiled model; may be repeated.
                                                  `ferroflow run --help` lists the forms of VALUE
  --feeds=FILE.npz                                Feeds every array of the file whose key names a
                                                  tensor of the model
  --print_error_code                              Prints the codes of errors
  --enable_tracing [--tracing_level=default|verbose|debug]
                                                  Prints at the end what happened
  --print_metrics                                 Prints at the end the version, and how many
                                                  functions took less than how many seconds

With FERROFLOW_TFRT_STATE=2022 in the environment, tensors are printed as TFRT does since 2022.
";

const OPT: &str = "\
Reads a host program as MLIR text, checks it and prints it.

Usage: ferroflow opt [OPTIONS] [FILE]

Options:
  -o FILE                       Writes to FILE
  --split-input-file            The text is several programs with `// -----` between them
  --verify-diagnostics          Comments `expected-error {{...}}` must be met, and may be
  --allow-unregistered-dialect  Accepted; operations that are not known always pass
  --mlir-print-op-generic       Writes text in the form that all operations have
  --mlir-print-debuginfo        Writes behind each operation where it stands
  --inline                      Replaces calls of functions by what the functions do
  --tfrt-print-stream           Says as remarks which stream each operation belongs to
";

/// Returns the result of the tool that the program's name selects, with TFRT's names.
pub fn by_program_name() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let program = args.next()?;
    let name = Path::new(&program).file_stem()?.to_str()?;
    // The tools' own tests have no file names that are not UTF-8.
    let args: Vec<String> = args.map(|a| a.to_string_lossy().into_owned()).collect();
    Some(match name {
        "tfrt_translate" => finish(translate(&args)),
        "tfrt_opt" => finish(opt(&args)),
        "bef_executor"
        | "bef_executor_lite"
        | "bef_executor_debug_tracing"
        | "code_size_test_driver" => finish(exec(&args)),
        "bef_name" => finish(bef_name(&args)),
        _ => return None,
    })
}

/// Returns the exit code of a status, or prints the message.
pub fn finish(result: Result<u8, String>) -> ExitCode {
    match result {
        Ok(status) => ExitCode::from(status),
        Err(message) => {
            let newline = if message.ends_with('\n') { "" } else { "\n" };
            eprint!("{message}{newline}");
            ExitCode::FAILURE
        }
    }
}

fn read(file: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let result = match file {
        "-" => std::io::stdin().read_to_end(&mut bytes).map(|_| ()),
        file => std::fs::read(file).map(|b| bytes = b),
    };
    result.map_err(|e| format!("cannot open input file '{file}': {e}"))?;
    Ok(bytes)
}

/// A BEF file: mapped, unless it is a pipe.
enum BefFile {
    Mapped(Arc<MappedFile>),
    Read(Arc<Vec<u8>>),
}

impl BefFile {
    fn open(file: &str) -> Result<BefFile, String> {
        if file == "-" || !Path::new(file).is_file() {
            return Ok(BefFile::Read(Arc::new(read(file)?)));
        }
        let mapped = MappedFile::open(file.as_ref());
        Ok(BefFile::Mapped(Arc::new(
            mapped.map_err(|e| e.to_string())?,
        )))
    }

    fn bytes(&self) -> FileBytes {
        match self {
            BefFile::Mapped(mapping) => mapping.clone(),
            BefFile::Read(bytes) => bytes.clone(),
        }
    }

    fn mapping(&self) -> Option<&Arc<MappedFile>> {
        match self {
            BefFile::Mapped(mapping) => Some(mapping),
            BefFile::Read(_) => None,
        }
    }
}

fn read_text(file: &str) -> Result<String, String> {
    String::from_utf8(read(file)?).map_err(|_| format!("{file}: error: not UTF-8 text"))
}

fn write(file: &str, bytes: &[u8]) -> Result<u8, String> {
    let result = match file {
        "-" => std::io::stdout()
            .write_all(bytes)
            .map_err(|e| e.to_string()),
        // A process that has the file mapped keeps the old content.
        file => ferroflow_model::write_output(file.as_ref(), bytes).map_err(|e| e.to_string()),
    };
    result.map_err(|e| format!("cannot write '{file}': {e}"))?;
    Ok(0)
}

fn text_options(options: &Options) -> TextOptions {
    TextOptions {
        split_input_file: options.flag("split-input-file"),
        verify_diagnostics: options.flag("verify-diagnostics"),
        inline: options.flag("inline"),
        print_streams: options.flag("tfrt-print-stream"),
        streams: options.flag("streams") || state() == TfrtState::Year2022,
    }
}

fn print_options(options: &Options) -> mlir::PrintOptions {
    mlir::PrintOptions {
        generic: options.flag("mlir-print-op-generic"),
        locations: options.flag("mlir-print-debuginfo"),
        builtin_names: state() == TfrtState::Year2022,
    }
}

/// Returns the TFRT state that the environment selects.
fn state() -> TfrtState {
    match std::env::var("FERROFLOW_TFRT_STATE").as_deref() {
        Ok("2022") => TfrtState::Year2022,
        _ => TfrtState::Year2021,
    }
}

/// Runs `ferroflow translate`.
pub fn translate(args: &[String]) -> Result<u8, String> {
    let flags = [
        "mlir-to-bef",
        "bef-to-mlir",
        "split-input-file",
        "verify-diagnostics",
        "disable-optional-sections",
        "streams",
        "mlir-print-op-generic",
        "mlir-print-debuginfo",
        "allow-unregistered-dialect",
    ];
    let options = Options::parse(args, &flags, &["o"], TRANSLATE)?;
    if options.wants_help() {
        return write("-", TRANSLATE.as_bytes());
    }
    let (file, out) = (options.file(), options.value("o").unwrap_or("-"));
    match (options.flag("mlir-to-bef"), options.flag("bef-to-mlir")) {
        (true, false) => {
            let optional_sections = !options.flag("disable-optional-sections");
            let settings = text_options(&options);
            let bytes = mlir_to_bef(&read_text(file)?, file, settings, optional_sections)?;
            match settings.verify_diagnostics {
                true => Ok(0),
                false => write(out, &bytes),
            }
        }
        (false, true) => {
            let (text, warnings) = bef_to_mlir(read(file)?, file, print_options(&options))?;
            eprint!("{warnings}");
            write(out, text.as_bytes())
        }
        _ => Err(TRANSLATE.to_string()),
    }
}

/// Runs `ferroflow opt`.
pub fn opt(args: &[String]) -> Result<u8, String> {
    let flags = [
        "split-input-file",
        "verify-diagnostics",
        "allow-unregistered-dialect",
        "mlir-print-op-generic",
        "mlir-print-debuginfo",
        "inline",
        "tfrt-print-stream",
    ];
    let options = Options::parse(args, &flags, &["o"], OPT)?;
    if options.wants_help() {
        return write("-", OPT.as_bytes());
    }
    let (file, settings) = (options.file(), text_options(&options));
    let text = optimize(&read_text(file)?, file, settings, print_options(&options))?;
    match settings.verify_diagnostics {
        true => Ok(0),
        false => write(options.value("o").unwrap_or("-"), text.as_bytes()),
    }
}

/// Runs `ferroflow exec`.
pub fn exec(args: &[String]) -> Result<u8, String> {
    let values = [
        "work_queue_type",
        "functions",
        "test_init_function",
        "host_allocator_type",
        "shared_libs",
        "tracing_level",
        "feed",
        "feeds",
    ];
    let flags = ["print_error_code", "enable_tracing", "print_metrics"];
    let options = Options::parse(args, &flags, &values, EXEC)?;
    if options.wants_help() {
        return write("-", EXEC.as_bytes());
    }
    let mut registry = host_registry();
    let libraries = options.value("shared_libs").unwrap_or_default();
    for path in libraries.split(',').filter(|p| !p.is_empty()) {
        ferroflow_plugin::load(&mut registry, path).map_err(|e| e.to_string())?;
    }
    let mut config = Config::default();
    if let Some(queue) = options.value("work_queue_type") {
        config.work_queue = queue.to_string();
    }
    if let Some(functions) = options.value("functions") {
        config.functions = functions.split(',').map(str::to_string).collect();
    }
    if let Some(function) = options.value("test_init_function") {
        config.init_function = function.to_string();
    }
    if let Some(name) = options.value("host_allocator_type") {
        config.allocator = AllocatorType::from_name(name)
            .ok_or_else(|| format!("unknown allocator '{name}'\n\n{EXEC}"))?;
    }
    config.print_error_code = options.flag("print_error_code");
    config.print_metrics = options.flag("print_metrics");
    config.state = state();
    if options.flag("enable_tracing") {
        let level = options.value("tracing_level").unwrap_or("default");
        config.tracing = Some(
            TraceLevel::from_name(level)
                .ok_or_else(|| format!("unknown tracing level '{level}'\n\n{EXEC}"))?,
        );
    }
    let threads = work_queue(&config.work_queue).map_or(1, |queue| queue.parallelism_level());
    let source = BefFile::open(options.file())?;
    let model = model_call(&source, &options, threads).map_err(|e| e.to_string())?;
    let driver = Driver::new(config, registry).with_model(model);
    let status = driver.run(source.bytes(), Box::new(std::io::stdout()));
    Ok(u8::try_from(status).unwrap_or(1))
}

/// Returns the compiled model in the file, if any, with its feeds.
fn model_call(
    source: &BefFile,
    options: &Options,
    threads: usize,
) -> Result<Option<ModelCall>, Status> {
    let session = SessionOptions {
        threads,
        ..SessionOptions::default()
    };
    let (feeds, npz) = (options.values("feed"), options.value("feeds"));
    let model = match CompiledModel::find(source.bytes(), source.mapping(), session) {
        Err(e) if bef::File::open(source.bytes()).is_ok() => return Err(e),
        // The driver reports errors in other files.
        model => model.unwrap_or_default(),
    };
    let Some(model) = model.map(|m| Model::Compiled(Box::new(m))) else {
        return match feeds.is_empty() && npz.is_none() {
            true => Ok(None),
            false => Err(invalid_argument!(
                "--feed and --feeds are for compiled models"
            )),
        };
    };
    let args = match feeds.is_empty() && npz.is_none() {
        true => None,
        false => Some(
            RunArgs::of_feeds(feeds, npz.map(Into::into))
                .request(&model)?
                .args,
        ),
    };
    match model {
        Model::Compiled(model) => Ok(Some(ModelCall {
            model: *model,
            args,
        })),
        _ => Ok(None),
    }
}

/// Prints the BEF file name of an MLIR file: `bef_name foo.mlir` prints `foo.bef`.
fn bef_name(args: &[String]) -> Result<u8, String> {
    let [file] = args else {
        return Err("Wrong number of arguments, expecting one MLIR file name argument".to_string());
    };
    match file.strip_suffix(".mlir") {
        Some(stem) => write("-", format!("{stem}.bef\n").as_bytes()),
        None => Err(format!("File name ({file}) does not end in .mlir")),
    }
}
