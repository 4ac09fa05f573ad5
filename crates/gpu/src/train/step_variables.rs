//! Variables in steps that are captured: captured operations read and write memory that does not change from step to step.

use crate::kernel::GpuCtx;
use ferroflow_base::{Result, aborted, failed_precondition};
use ferroflow_device::{Buffer, Captured, StreamMemory, is_capturing, note_write};
use ferroflow_opdef::KernelCtx;
use ferroflow_resources::resource::{Var, handle, variable};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::any::Any;
use std::cell::RefCell;
use std::sync::{Arc, RwLockWriteGuard};

/// The value of a variable when a step first used it.
enum Before {
    Unassigned,
    /// A value that is with the host, which kernels of the host update in every run.
    Host(Tensor),
    /// Memory of the device, which a capture does not write.
    Device(OnDevice),
}

struct OnDevice {
    home: Arc<Buffer>,
    dtype: DType,
    shape: Shape,
    /// The tensor itself, if it has another owner.
    shared: Option<Tensor>,
}

struct Touched {
    var: Arc<Var>,
    before: Before,
    version: u64,
    /// The version behind the last write of the step: what others write later stays.
    settled: Option<u64>,
}

thread_local! {
    /// The variables that the step of this thread has used, if it notes them.
    static TOUCHED: RefCell<Option<Vec<Touched>>> = const { RefCell::new(None) };
}

/// Notes the variables of this thread's step until it is dropped, also in a panic.
struct Notes;

impl Notes {
    fn start() -> Notes {
        TOUCHED.set(Some(Vec::new()));
        Notes
    }

    fn take(&self) -> Vec<Touched> {
        TOUCHED.with_borrow_mut(|touched| touched.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Notes that the step writes no more.
    fn settle() {
        TOUCHED.with_borrow_mut(|touched| {
            for t in touched.iter_mut().flatten() {
                t.settled = Some(t.var.version());
            }
        });
    }

    /// Sets the variables back to what they were.
    ///
    /// # Errors
    /// INTERNAL if a value is on another device.
    fn undo(&self, memory: &StreamMemory) -> Result<()> {
        let touched = self.take();
        touched.iter().try_for_each(|t| t.undo(memory))
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        TOUCHED.set(None);
    }
}

/// Notes a variable that the step of this thread is about to use.
fn note(var: &Arc<Var>, memory: Option<&StreamMemory>) {
    TOUCHED.with_borrow_mut(|touched| {
        let Some(touched) = touched else { return };
        if touched.iter().any(|t| Arc::ptr_eq(&t.var, var)) {
            return;
        }
        let on_device = |t: &Tensor| memory.and_then(|m| m.buffer_of(t).ok());
        let mut before = Before::Unassigned;
        // It only looks at the value.
        let _ = var.reset(|value| {
            if let Some(t) = value {
                before = match on_device(t) {
                    None => Before::Host(t.clone()),
                    Some(home) => Before::Device(OnDevice {
                        home,
                        dtype: t.dtype(),
                        shape: t.shape().clone(),
                        shared: (!t.is_sole_owner()).then(|| t.clone()),
                    }),
                };
            }
            Ok(())
        });
        touched.push(Touched {
            var: var.clone(),
            before,
            version: var.version(),
            settled: None,
        });
    });
}

/// Notes the variables that a kernel of the host may update, if the step of this thread notes them.
pub(crate) fn note_host(ctx: &KernelCtx) {
    if TOUCHED.with_borrow(Option::is_none) {
        return;
    }
    let memory = StreamMemory::current().ok();
    for i in 0..ctx.num_inputs() {
        if ctx.input(i).is_ok_and(|t| t.dtype() == DType::Resource)
            && let Ok(var) = variable(ctx, i)
        {
            note(&var, memory.as_deref());
        }
    }
}

/// The variable in input `i`, which the call is about to write. A step that is captured is the one of this variable from now
/// on.
///
/// # Errors
/// As for [`read_variable`]; those of the device.
pub(crate) fn written_variable(ctx: &GpuCtx, i: usize) -> Result<Arc<Var>> {
    let var = read_variable(ctx, i)?;
    note_write(ctx.memory)?;
    Ok(var)
}

/// The variable in input `i`. A step that is captured is the one of this variable from now on.
///
/// # Errors
/// INVALID_ARGUMENT if the input is not a handle of a variable; FAILED_PRECONDITION if the variable of a captured step may change.
pub(crate) fn read_variable(ctx: &GpuCtx, i: usize) -> Result<Arc<Var>> {
    let var = variable(ctx.engine(), i)?;
    if is_capturing() {
        if handle(ctx.engine(), i)?.value.is_none() {
            return Err(failed_precondition!("a variable is looked up by its name"));
        }
        note(&var, Some(ctx.memory));
        let expected: Arc<dyn Any + Send + Sync> = var.clone();
        let same = move |handles: &Tensor| match handles.resources()? {
            [handle] if is_same(handle.value.as_ref(), &expected) => Ok(()),
            _ => Err(failed_precondition!("the step uses another variable")),
        };
        ctx.check(i, Box::new(same))?;
    }
    Ok(var)
}

fn is_same(
    value: Option<&Arc<dyn Any + Send + Sync>>,
    expected: &Arc<dyn Any + Send + Sync>,
) -> bool {
    value.is_some_and(|value| Arc::ptr_eq(value, expected))
}

impl Touched {
    fn undo(&self, memory: &StreamMemory) -> Result<()> {
        let version = self.var.version();
        if self.settled.is_some_and(|settled| settled != version) {
            return Ok(());
        }
        self.var.reset(|value| {
            *value = match &self.before {
                Before::Unassigned => None,
                Before::Host(tensor) => Some(tensor.clone()),
                Before::Device(old)
                    if value.as_ref().is_some_and(|t| is_at(memory, t, &old.home)) =>
                {
                    return Ok(());
                }
                Before::Device(old) => Some(match &old.shared {
                    Some(tensor) => tensor.clone(),
                    None => memory.tensor_of(old.home.clone(), old.dtype, old.shape.clone())?,
                }),
            };
            Ok(())
        })?;
        // Others may have read what the step would have written.
        if version != self.version {
            drop(self.var.write());
        }
        Ok(())
    }
}

fn is_at(memory: &StreamMemory, tensor: &Tensor, home: &Buffer) -> bool {
    let span = memory.span(tensor);
    span.is_ok_and(|span| span.address == home.address() && span.len == home.len())
}

/// A variable of a captured step.
struct Used {
    var: Arc<Var>,
    /// Where the operations read and write its value.
    home: Arc<Buffer>,
    is_written: bool,
}

/// A step whose operations are captured, with its variables.
pub struct CapturedStep {
    captured: Captured,
    memory: Arc<StreamMemory>,
    /// In the order of their addresses, as [`ferroflow_resources::resource::lock`] locks variables.
    variables: Vec<Used>,
}

impl CapturedStep {
    /// Captures what `run` enqueues for tensors like `like`, as [`StreamMemory::capture`]. Variables keep their values.
    ///
    /// # Errors
    /// As for [`StreamMemory::capture`]; FAILED_PRECONDITION if the step assigns a variable for the first time, values of
    /// another shape or to one that the host has, or returns a value that it replaces; ABORTED if it writes a value that has another owner now.
    pub fn new(
        memory: &Arc<StreamMemory>,
        like: &[Tensor],
        run: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<CapturedStep> {
        let (notes, mut variables) = (Notes::start(), Vec::new());
        let captured = memory.capture(like, |args| {
            let results = run(args)?;
            Notes::settle();
            TOUCHED.with_borrow(|touched| {
                let touched = touched.as_deref().unwrap_or_default();
                variables = bring_home(memory, touched, &results)?;
                Ok(results)
            })
        });
        notes.undo(memory)?;
        variables.sort_unstable_by_key(|used: &Used| Arc::as_ptr(&used.var));
        Ok(CapturedStep {
            captured: captured?,
            memory: memory.clone(),
            variables,
        })
    }

    /// Runs the step for arguments of the shapes that were captured, as [`Captured::replay`].
    ///
    /// # Errors
    /// As for [`Captured::replay`]; FAILED_PRECONDITION if the value of a variable is elsewhere, or one that is to be
    /// written has another user. Nothing has changed then. The inner errors are those of the device from then on.
    pub fn replay(
        &self,
        args: &[Tensor],
        run: impl FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Result<Vec<Tensor>>> {
        let notes = Notes::start();
        let done = self.captured.replay(args, run, || {
            Notes::settle();
            self.lock()
        });
        if done.is_err() {
            notes.undo(&self.memory)?;
        }
        done
    }

    /// Locks the variables that are written, and checks that all values are where the operations expect them.
    fn lock(&self) -> Result<Vec<RwLockWriteGuard<'_, Option<Tensor>>>> {
        let is_home = |value: &Option<Tensor>, home: &Buffer| {
            let value = value.as_ref();
            value.is_some_and(|t| is_at(&self.memory, t, home))
        };
        let mut locked = Vec::new();
        for used in &self.variables {
            let found = match used.is_written {
                false => is_home(&used.var.read(), &used.home),
                true => {
                    let mut value = used.var.write();
                    let found = is_home(&value, &used.home)
                        && value.as_mut().is_some_and(Tensor::is_sole_owner);
                    locked.push(value);
                    found
                }
            };
            if !found {
                return Err(failed_precondition!("the value of a variable is elsewhere"));
            }
        }
        Ok(locked)
    }
}

/// Enqueues copies of the new values of variables to where the old ones are; returns the variables.
fn bring_home(memory: &StreamMemory, touched: &[Touched], results: &[Tensor]) -> Result<Vec<Used>> {
    let mut moved: Vec<(&Used, Tensor, DType, &Shape)> = Vec::new();
    let (mut used, mut values) = (Vec::new(), Vec::new());
    for t in touched {
        let value = t.var.get();
        let (home, dtype, shape) = match (&t.before, &value) {
            // Replays do not move it.
            (Before::Host(_), Some(value)) if value.is_on_device() => {
                return Err(failed_precondition!(
                    "the value of a variable moves to the device"
                ));
            }
            (Before::Host(_), _) | (Before::Unassigned, None) => continue,
            (Before::Device(old), _) => (&old.home, old.dtype, &old.shape),
            (Before::Unassigned, Some(_)) => {
                return Err(failed_precondition!(
                    "a variable is assigned for the first time"
                ));
            }
        };
        let value = value.filter(|v| v.dtype() == dtype && v.shape() == shape);
        let value = value.ok_or_else(|| failed_precondition!("the shape of a variable changes"))?;
        let is_written = t.var.version() != t.version;
        let is_shared = matches!(&t.before, Before::Device(old) if old.shared.is_some());
        if is_written && is_shared {
            return Err(aborted!("a value that is replaced has another owner"));
        }
        used.push(Used {
            var: t.var.clone(),
            home: home.clone(),
            is_written,
        });
        values.push((value, dtype, shape));
    }
    for (at, (used_here, (value, dtype, shape))) in used.iter().zip(&values).enumerate() {
        if is_at(memory, value, &used_here.home) {
            continue;
        }
        moved.push((used_here, value.clone(), *dtype, shape));
        let home = (used_here.home.address().0, used_here.home.len() as u64);
        let others = values.iter().enumerate().filter(|(i, _)| *i != at);
        let mut tensors = others.map(|(_, (value, _, _))| value).chain(results);
        let homes = used.iter().enumerate().filter(|(i, _)| *i != at);
        let mut homes = homes.map(|(_, u)| (u.home.address().0, u.home.len() as u64));
        let is_in = |t: &Tensor| {
            let span = memory.span(t);
            span.is_ok_and(|s| overlap(home, (s.address.0, s.len as u64)))
        };
        if tensors.any(is_in) || homes.any(|other| overlap(home, other)) {
            return Err(failed_precondition!(
                "a value that is replaced has another use"
            ));
        }
    }
    for (used, value, dtype, shape) in moved {
        let home = memory.tensor_of(used.home.clone(), dtype, shape.clone())?;
        memory.copy_tensor(&home, &value)?;
    }
    Ok(used)
}

/// Whether two ranges, of an address and a length, have bytes in common.
fn overlap((a, n): (u64, u64), (b, m): (u64, u64)) -> bool {
    a < b + m && b < a + n
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_base::Code;
    use ferroflow_device::cuda::Cuda;
    use ferroflow_device::{AllocatorOptions, Device, begin_call, note_output};
    use ferroflow_testkit::driver::stand_in_driver;
    use std::sync::mpsc;

    /// Memory of a stand-in for a GPU; `None` without a C compiler.
    fn memory() -> Option<Arc<StreamMemory>> {
        let library = stand_in_driver()?;
        let cuda = Cuda::open(&library.display().to_string()).expect("all functions");
        std::fs::remove_file(library).expect("just written");
        let device = Device::new(cuda, 0).expect("one device");
        let memory = StreamMemory::new(&device, &AllocatorOptions::default());
        Some(Arc::new(memory.expect("enough memory")))
    }

    fn on_host(memory: &StreamMemory, tensor: &Tensor) -> Vec<f32> {
        let (send, receive) = mpsc::channel();
        memory.to_host(tensor.clone(), move |t| send.send(t).expect("received"));
        let tensor = receive.recv().expect("sent").expect("copied");
        tensor.slice::<f32>().expect("floats").to_vec()
    }

    /// A variable of the device, one of the host, and a step that adds 1 to the latter, assigns its argument to the
    /// former, and returns the value that was there: a copy, or the tensor itself.
    struct Fixture {
        memory: Arc<StreamMemory>,
        var: Arc<Var>,
        count: Arc<Var>,
        returns_copy: bool,
    }

    impl Fixture {
        fn new(memory: Arc<StreamMemory>) -> Fixture {
            let this = Fixture {
                memory,
                var: Arc::default(),
                count: Arc::default(),
                returns_copy: true,
            };
            let first = this.upload(1.0);
            this.var.assign(first, None, true).expect("no value yet");
            let zero = Tensor::scalar(0i64);
            this.count.assign(zero, None, true).expect("no value yet");
            this
        }

        fn upload(&self, n: f32) -> Tensor {
            let tensor = Tensor::vector(&[n; 9]).expect("nine");
            self.memory.upload(&tensor).expect("enough memory")
        }

        fn count(&self) -> i64 {
            self.count.get().expect("a value").slice().expect("ints")[0]
        }

        fn value(&self) -> f32 {
            on_host(&self.memory, &self.var.get().expect("a value"))[0]
        }

        fn run(&self, args: Vec<Tensor>) -> Result<Vec<Tensor>> {
            let memory = &*self.memory;
            note(&self.count, None);
            self.count
                .assign(Tensor::scalar(self.count() + 1), None, true)?;
            let mut outputs = Vec::new();
            let output = |_, tensor| {
                outputs.push(tensor);
                Ok(())
            };
            if begin_call(memory, |i| Ok(args[i].clone()), output)? {
                return Ok(outputs);
            }
            note(&self.var, Some(memory));
            let mut old = self.var.get().expect("a value");
            if self.returns_copy {
                let copy = memory.allocate_tensor(DType::Float, [9].into())?;
                memory.copy_tensor(&copy, &old)?;
                old = copy;
            }
            note_output(memory, 0, &old)?;
            note_write(memory)?;
            let new = memory.allocate_tensor(DType::Float, [9].into())?;
            memory.copy_tensor(&new, &args[0])?;
            self.var.assign(new, None, true)?;
            Ok(vec![old])
        }
    }

    #[test]
    fn values_stay_where_captured_operations_expect_them() {
        let Some(memory) = memory() else { return };
        let this = Fixture::new(memory.clone());
        let run = |args| this.run(args);
        let step = CapturedStep::new(&memory, &[this.upload(0.0)], run).expect("can be captured");
        // A capture changes nothing.
        assert_eq!((this.value(), this.count()), (1.0, 0));
        for (n, old) in [(2.0, 1.0), (3.0, 2.0), (4.0, 3.0)] {
            let results = step.replay(&[this.upload(n)], run).expect("as captured");
            let results = results.expect("no error of the device");
            assert_eq!(on_host(&memory, &results[0]), [old; 9]);
            assert_eq!((this.value(), this.count()), (n, n as i64 - 1));
        }
        // Another owner keeps what it has.
        let kept = this.var.get().expect("a value");
        let error = step
            .replay(&[this.upload(5.0)], run)
            .expect_err("it is shared");
        assert_eq!(error.code(), Code::FailedPrecondition);
        assert_eq!(
            (this.value(), this.count(), on_host(&memory, &kept)[0]),
            (4.0, 3, 4.0)
        );
        drop(kept);
        assert!(step.replay(&[this.upload(6.0)], run).is_ok());
        // A value that is elsewhere.
        this.var
            .assign(this.upload(7.0), None, true)
            .expect("of the same shape");
        assert!(step.replay(&[this.upload(8.0)], run).is_err());
        assert_eq!((this.value(), this.count()), (7.0, 4));
    }

    #[test]
    fn replaced_values_are_no_results() {
        let Some(memory) = memory() else { return };
        let mut this = Fixture::new(memory.clone());
        this.returns_copy = false;
        let captured = CapturedStep::new(&memory, &[this.upload(0.0)], |args| this.run(args));
        let error = captured.err().expect("its result would be overwritten");
        assert_eq!(error.code(), Code::FailedPrecondition);
        assert_eq!((this.value(), this.count()), (1.0, 0));
    }

    #[test]
    fn shared_values_are_not_overwritten_for_each_other() {
        let Some(memory) = memory() else { return };
        let this = Fixture::new(memory.clone());
        // Another variable of the step has the same memory.
        let twin = Arc::new(Var::default());
        twin.assign(this.var.get().expect("a value"), None, true)
            .expect("no value yet");
        let run = |args| {
            note(&twin, Some(&memory));
            this.run(args)
        };
        let error = CapturedStep::new(&memory, &[this.upload(0.0)], run).err();
        assert_eq!(error.expect("shared").code(), Code::Aborted);
        // The same of one that the step does not know.
        let error = CapturedStep::new(&memory, &[this.upload(0.0)], |args| this.run(args)).err();
        assert_eq!(error.expect("shared").code(), Code::Aborted);
        let kept = twin.get().expect("a value");
        assert_eq!((on_host(&memory, &kept)[0], this.value()), (1.0, 1.0));
        drop((kept, std::mem::take(&mut *twin.write())));
        assert!(CapturedStep::new(&memory, &[this.upload(0.0)], |args| this.run(args)).is_ok());
        // A variable without a value gets one.
        let empty = Arc::new(Var::default());
        let run = |args: Vec<Tensor>| {
            note(&empty, Some(&memory));
            empty.assign(args[0].clone(), None, true)?;
            Ok(args)
        };
        let error = CapturedStep::new(&memory, &[this.upload(0.0)], run).err();
        assert_eq!(error.expect("no value").code(), Code::FailedPrecondition);
        assert!(empty.get().is_none());
        // One that a kernel of the host has updated gets a value of the device.
        let host = Tensor::vector(&[1f32; 9]).expect("nine");
        empty.assign(host, None, true).expect("no value yet");
        let run = |args: Vec<Tensor>| {
            note(&empty, Some(&memory));
            empty.assign(args[0].clone(), None, true)?;
            Ok(args)
        };
        let error = CapturedStep::new(&memory, &[this.upload(0.0)], run).err();
        assert_eq!(error.expect("it moves").code(), Code::FailedPrecondition);
        assert!(!empty.get().expect("a value").is_on_device());
    }
}
