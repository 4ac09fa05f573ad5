//! `tfrt_test.benchmark` and `tfrt_test.sync_benchmark`: repeated, timed runs of a function.

use cpu_time::ProcessTime;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{
    ExecutionContext, Frame, Function, HostContext, KernelFrame, KernelRegistry, SyncKernelFrame,
    Values,
};
use ferroflow_sync::{Chain, Promise};
use std::time::{Duration, Instant};

struct Statistics {
    name: String,
    n_warmup: usize,
    max_count: usize,
    limit: Duration,
    count: usize,
    wall: Vec<Duration>,
    cpu: Vec<Duration>,
    total_wall: Duration,
    total_cpu: Duration,
    start: (Instant, ProcessTime),
}

impl Statistics {
    /// Reads the options from the attributes, which are in alphabetical order of their names.
    fn new(frame: &impl Frame, name: String, counts: [usize; 3]) -> Result<Self> {
        let number = |i: usize| -> Result<usize> {
            let value = frame.attribute(i)?.number::<i32>()?;
            Ok(usize::try_from(value).unwrap_or(0))
        };
        let [duration, max_count, n_warmup] = counts;
        Ok(Statistics {
            name,
            n_warmup: number(n_warmup)?,
            max_count: number(max_count)?.max(1),
            limit: Duration::from_secs(number(duration)? as u64),
            count: 0,
            wall: Vec::new(),
            cpu: Vec::new(),
            total_wall: Duration::ZERO,
            total_cpu: Duration::ZERO,
            start: (Instant::now(), ProcessTime::now()),
        })
    }

    fn begin(&mut self) {
        self.count += 1;
        self.start = (Instant::now(), ProcessTime::now());
    }

    fn end(&mut self) {
        if self.count <= self.n_warmup {
            return;
        }
        let (wall, cpu) = (self.start.0.elapsed(), self.start.1.elapsed());
        self.wall.push(wall);
        self.cpu.push(cpu);
        self.total_wall += wall;
        self.total_cpu += cpu;
    }

    fn goes_on(&self) -> bool {
        self.count < self.max_count.saturating_add(self.n_warmup) && self.total_wall < self.limit
    }

    fn print(&mut self, host: &HostContext) {
        let mut text = String::new();
        let mut line = |what: &str, value: String| {
            text.push_str(&format!("BM:{}:{what}: {value}\n", self.name));
        };
        line("Duration(ns)", self.total_wall.as_nanos().to_string());
        line("Count", self.wall.len().to_string());
        for (clock, times) in [("Time", &mut self.wall), ("CPU", &mut self.cpu)] {
            times.sort_unstable();
            for (what, percent) in [("Min", 0), ("50%", 50), ("95%", 95), ("99%", 99)] {
                let time = times.get(times.len() * percent / 100).copied();
                let nanos = time.unwrap_or_default().as_nanos().to_string();
                line(&format!("{clock} {what}(ns)"), nanos);
            }
        }
        let used = self.total_cpu.as_secs_f64() / self.total_wall.as_secs_f64().max(1e-9);
        line("CPU utilization(percent)", format!("{:.0}", used * 100.0));
        host.print(&text);
    }
}

struct Runner {
    statistics: Statistics,
    function: Function,
    args: Values,
    ctx: ExecutionContext,
    done: Promise<Chain>,
}

impl Runner {
    /// Runs the function and then starts the next run from the work queue.
    fn start(mut self: Box<Self>) {
        self.statistics.begin();
        let ctx = self.ctx.clone();
        ctx.enqueue(move || {
            let mut results = self.function.execute(&self.ctx, self.args.clone());
            let Some(result) = results.pop() else {
                return;
            };
            result.clone().and_then(move || {
                self.statistics.end();
                if let Some(error) = result.error() {
                    self.done.set_error(error.clone());
                } else if self.statistics.goes_on() {
                    drop(result);
                    self.start();
                } else {
                    self.statistics.print(self.ctx.host());
                    self.done.emplace(Chain);
                }
            });
        });
    }
}

fn benchmark(frame: &mut KernelFrame) -> Result<()> {
    let function = frame.function(0)?;
    if function.arity().1 != 1 {
        return Err(invalid_argument!(
            "Benchmark op requires the input function have exactly one return value"
        ));
    }
    function.check_arity(frame.n_args(), 1)?;
    let name = frame.attribute(2)?.string()?.to_string();
    let statistics = Statistics::new(frame, name, [0, 1, 3])?;
    let runner = Runner {
        statistics,
        function,
        args: frame.take_args(),
        ctx: frame.ctx().clone(),
        done: frame.allocate(0),
    };
    Box::new(runner).start();
    Ok(())
}

fn sync_benchmark(frame: &mut SyncKernelFrame) -> Result<()> {
    let function = frame.function(0)?;
    if function.arity().1 != 0 {
        return Err(invalid_argument!(
            "SyncBenchmark op requires the input function have zero return value"
        ));
    }
    if function.arity().0 != frame.n_args() {
        return Err(invalid_argument!(
            "Incorrect number of arguments for the target function for the SyncBenchmark op"
        ));
    }
    let mut statistics = Statistics::new(frame, function.name().to_string(), [0, 1, 2])?;
    let args = (0..frame.n_args()).filter_map(|i| frame.arg_value(i).cloned());
    let args: Vec<_> = args.collect();
    while statistics.goes_on() {
        statistics.begin();
        function.execute_sync(frame.ctx(), args.clone())?;
        statistics.end();
    }
    statistics.print(frame.ctx().host());
    Ok(())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .add_raw("tfrt_test.benchmark", benchmark)
        .add_raw_sync("tfrt_test.sync_benchmark", sync_benchmark);
}
