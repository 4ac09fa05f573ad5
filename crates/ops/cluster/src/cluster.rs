//! `_Cluster`: a loop, a conditional or a group of small ops as one program.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::random_stream::{NodeRandom, NodeStream};
use ferroflow_jit::{Array, Code, CodeKey, Exit, compile};
use ferroflow_opdef::{
    AttrValue, Attrs, Cluster, ClusterInput, ClusterOutput, Cost, KernelBuild, KernelCtx, Op,
    OpKernel, ScalarType, ShapeCtx,
};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// `_Cluster` is internal: it runs `program`, whose random numbers are those of the nodes `streams` with two `seeds`
/// each, or calls `f`, the nodes that the program was made of,
/// if inputs have other shapes or the program leaves. Code is made by the first run of a program
/// with loops, and by a later one of others.
pub(crate) const OPS: &[Op] = &[Op::new(
    "_Cluster",
    "args: list(Tin) -> results: list(Tout) | Tin: list(type) >= 0; Tout: list(type) >= 0; \
     f: func; program: string; streams: list(string) = []; seeds: list(int) = []",
)
.shape(shape)
.cost(Cost::Expensive)
.cost_of(cost)
.kernel(build)
.not_differentiable()];

/// Instructions of a program that takes less time than another thread takes to begin with it.
const MAX_CHEAP: usize = 300;

fn cost(attrs: &Attrs) -> Cost {
    let program = attrs.str("program").and_then(Cluster::decode);
    match program.ok().and_then(|p| p.max_insts()) {
        Some(..MAX_CHEAP) => Cost::Cheap,
        _ => Cost::Expensive,
    }
}

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let program = Cluster::decode(ctx.attrs().str("program")?)?;
    // Inputs of other shapes run the function, whose outputs may have any shape.
    let is_sure = program.inputs.iter().enumerate().all(|(i, input)| {
        let shape = ctx.input(i);
        match input {
            ClusterInput::Tensor(_, dims) => shape.to_full().is_some_and(|s| s.dims() == dims),
            ClusterInput::Array(_) => shape.rank() == Some(1),
        }
    });
    if !is_sure {
        return Ok(());
    }
    for (i, output) in program.outputs.iter().enumerate() {
        let shape = match output {
            ClusterOutput::Tensor(_, dims, _) => PartialShape::of(dims.iter().map(|d| Some(*d))),
            ClusterOutput::Array(_) => PartialShape::of_rank(1),
        };
        ctx.set(i, shape);
    }
    Ok(())
}

/// Time between two attempts to lock a stream.
const LOCK_AGAIN: Duration = Duration::from_micros(20);

/// Words of a program that need no memory of their own.
const FEW: usize = 16;

/// Runs of a program without loops that do not pay for making code.
const WARM_UP: u32 = 16;

struct Kernel {
    program: Cluster,
    /// The types of the arrays that the program makes.
    array_types: Vec<ScalarType>,
    function: String,
    streams: Vec<NodeRandom>,
    /// The slots of streams by name, in which all steps lock them.
    lock_order: Vec<usize>,
    /// `None` if the program cannot be compiled.
    code: OnceLock<Option<Code>>,
    /// Runs that call the function before code is made.
    warm_up: AtomicU32,
    /// Whether a step makes code, or did.
    is_compiling: AtomicBool,
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let program = Cluster::decode(build.attrs.str("program")?)?;
    let inputs = program.inputs.iter().map(|input| match input {
        ClusterInput::Tensor(ty, _) | ClusterInput::Array(ty) => ty.dtype(),
    });
    let array_types = program.array_types();
    let outputs = program.outputs.iter().map(|output| match output {
        ClusterOutput::Tensor(ty, ..) => Some(ty.dtype()),
        ClusterOutput::Array(slot) => array_types.get(*slot as usize).map(|t| t.dtype()),
    });
    let fits = inputs.eq(build.inputs.iter().copied())
        && outputs.eq(build.outputs.iter().map(|t| Some(*t)));
    let function = match build.attrs.get("f") {
        Some(AttrValue::Func(f)) if fits => f.name.clone(),
        _ => {
            return Err(invalid_argument!(
                "the program of a _Cluster does not fit the node's dtypes, or attr 'f' is not a function"
            ));
        }
    };
    let streams = streams(build.attrs)?;
    if streams.len() != program.n_streams as usize {
        return Err(invalid_argument!(
            "the program of a _Cluster has {} streams, the node {}",
            program.n_streams,
            streams.len()
        ));
    }
    let mut lock_order: Vec<usize> = (0..streams.len()).collect();
    lock_order.sort_unstable_by_key(|slot| streams[*slot].name());
    let sealed = sealed(build, &program)?;
    let warm_up = if program.max_insts().is_none() {
        0
    } else {
        WARM_UP
    };
    Ok(Box::new(Kernel {
        warm_up: AtomicU32::new(warm_up),
        is_compiling: AtomicBool::new(false),
        program,
        array_types,
        function,
        streams,
        lock_order,
        code: sealed.map_or_else(OnceLock::new, |code| OnceLock::from(Some(code))),
    }))
}

/// The machine code of a compiled model, if the process has the key that it was sealed with.
fn sealed(build: &KernelBuild, program: &Cluster) -> Result<Option<Code>> {
    let Some(key) = CodeKey::of_process()? else {
        return Ok(None);
    };
    // Code is made anew for a file whose code is damaged.
    let packed = build.packed().and_then(Result::ok);
    Ok(match packed.as_deref() {
        Some([code]) => Code::unseal(program, code.bytes()?, key),
        _ => None,
    })
}

/// The streams of random numbers of a node.
fn streams(attrs: &Attrs) -> Result<Vec<NodeRandom>> {
    let (nodes, seeds) = (attrs.strs("streams")?, attrs.ints("seeds")?);
    let (pairs, rest) = seeds.as_chunks::<2>();
    let all = nodes.iter().zip(pairs);
    let all = all.map(|(node, [a, b])| NodeRandom::of(node, (*a as u64, *b as u64)));
    let all: Vec<NodeRandom> = all.collect();
    let names: BTreeSet<&str> = all.iter().map(NodeRandom::name).collect();
    if all.len() != nodes.len()
        || pairs.len() != all.len()
        || !rest.is_empty()
        || names.len() != all.len()
    {
        return Err(invalid_argument!(
            "a _Cluster has a name and two seeds for each of its streams, none twice"
        ));
    }
    Ok(all)
}

impl OpKernel for Kernel {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        if let Some(code) = self.code()
            && self.run(code, ctx)?
        {
            return Ok(());
        }
        let args = (0..ctx.num_inputs()).map(|i| ctx.take_input(i));
        let args: Vec<Tensor> = args.collect::<Result<_>>()?;
        let function = ctx.function(&self.function)?;
        let results = function.call(args, ctx.services())?;
        let mut results = results.into_iter().enumerate();
        results.try_for_each(|(i, result)| ctx.set_output(i, result))
    }

    /// Machine code, if the process has a key to seal it with.
    fn packed(&self) -> Result<Vec<Tensor>> {
        let Some(key) = CodeKey::of_process()? else {
            return Ok(Vec::new());
        };
        let code = self.code.get_or_init(|| compile(&self.program).ok());
        let sealed = code
            .iter()
            .map(|code| Tensor::vector(&code.seal(&self.program, key)?));
        sealed.collect()
    }
}

impl Kernel {
    /// The code, if there is one by now.
    fn code(&self) -> Option<&Code> {
        if let Some(code) = self.code.get() {
            return code.as_ref();
        }
        let left = self.warm_up.load(Ordering::Relaxed);
        if left > 0 {
            // Steps at the same time may count as one.
            self.warm_up.store(left - 1, Ordering::Relaxed);
            return None;
        }
        // Other steps call the function until there is code.
        if self.is_compiling.swap(true, Ordering::Relaxed) {
            return self.code.get()?.as_ref();
        }
        let code = self.code.get_or_init(|| compile(&self.program).ok());
        code.as_ref()
    }

    /// Runs the program; returns whether the outputs are set.
    fn run(&self, code: &Code, ctx: &mut KernelCtx) -> Result<bool> {
        let mut words: SmallVec<[u64; FEW]> = smallvec![];
        let mut arrays: SmallVec<[Array; 2]> = smallvec![];
        for (i, input) in self.program.inputs.iter().enumerate() {
            match input {
                ClusterInput::Tensor(ty, dims) => {
                    let tensor = ctx.input(i)?;
                    if tensor.shape().dims() != dims {
                        return Ok(false);
                    }
                    put(&mut words, tensor, *ty)?;
                }
                ClusterInput::Array(_) => {
                    let tensor = ctx.input(i)?;
                    if tensor.shape().rank() != 1 {
                        return Ok(false);
                    }
                    arrays.push(Array::Input(tensor.bytes()?));
                }
            }
        }
        let own = self.program.arrays.iter();
        arrays.extend(own.map(|_| Array::Own(Vec::new(), 0)));
        words.resize(code.n_words(), 0);
        match self.execute(code, ctx, &mut words, &mut arrays)? {
            Exit::Left => return Ok(false),
            Exit::Cancelled => ctx.services().cancel.check()?,
            Exit::Done => {}
        }
        let mut outputs: SmallVec<[Tensor; 8]> = smallvec![];
        let mut rest = &words[..];
        for output in &self.program.outputs {
            outputs.push(match output {
                ClusterOutput::Tensor(ty, dims, elements) => {
                    let (own, others) = rest.split_at_checked(elements.len()).unwrap_or_default();
                    rest = others;
                    take(own, *ty, dims)?
                }
                ClusterOutput::Array(slot) => {
                    let slot = *slot as usize;
                    match (arrays.get(slot), self.array_types.get(slot)) {
                        (Some(Array::Own(words, n)), Some(ty)) => vector(words, *n, ty.dtype())?,
                        _ => return Ok(false),
                    }
                }
            });
        }
        drop(arrays);
        let mut outputs = outputs.into_iter().enumerate();
        outputs.try_for_each(|(i, output)| ctx.set_output(i, output))?;
        Ok(true)
    }

    /// Runs code with the node's streams of random numbers, which go on if it is done.
    fn execute(
        &self,
        code: &Code,
        ctx: &KernelCtx,
        words: &mut [u64],
        arrays: &mut [Array],
    ) -> Result<Exit> {
        let cancel = ctx.services().cancel;
        if self.streams.is_empty() {
            return code.run(words, arrays, &mut [], cancel);
        }
        let streams = self.streams.iter().map(|s| s.stream(ctx.resources()));
        let streams: Vec<Arc<NodeStream>> = streams.collect::<Result<_>>()?;
        let mut locks = Vec::with_capacity(streams.len());
        for &slot in &self.lock_order {
            // Another step may have it for as long as it runs.
            let stream = loop {
                match streams[slot].try_lock() {
                    Some(stream) => break stream,
                    None => cancel.check()?,
                }
                std::thread::sleep(LOCK_AGAIN);
            };
            locks.push((slot, stream));
        }
        locks.sort_unstable_by_key(|(slot, _)| *slot);
        let mut next: Vec<Philox> = locks.iter().map(|(_, stream)| **stream).collect();
        let exit = code.run(words, arrays, &mut next, cancel)?;
        if exit == Exit::Done {
            let next = locks.iter_mut().zip(next);
            next.for_each(|((_, stream), next)| **stream = next);
        }
        Ok(exit)
    }
}

/// Appends the elements of a tensor, one a word.
fn put(words: &mut SmallVec<[u64; FEW]>, tensor: &Tensor, ty: ScalarType) -> Result<()> {
    match ty {
        ScalarType::Bool => words.extend(tensor.slice::<bool>()?.iter().map(|x| u64::from(*x))),
        ScalarType::I32 => {
            words.extend(tensor.slice::<i32>()?.iter().map(|x| u64::from(*x as u32)))
        }
        ScalarType::I64 => words.extend(tensor.slice::<i64>()?.iter().map(|x| *x as u64)),
        ScalarType::F32 => {
            words.extend(
                tensor
                    .slice::<f32>()?
                    .iter()
                    .map(|x| u64::from(x.to_bits())),
            );
        }
        ScalarType::F64 => words.extend(tensor.slice::<f64>()?.iter().map(|x| x.to_bits())),
    }
    Ok(())
}

/// Returns the tensor of these elements.
fn take(words: &[u64], ty: ScalarType, dims: &[usize]) -> Result<Tensor> {
    fn of<T: Element>(words: &[u64], dims: &[usize], f: impl Fn(u64) -> T) -> Result<Tensor> {
        match (dims, words) {
            ([], [word]) => Ok(Tensor::scalar(f(*word))),
            _ => {
                let shape: Shape = dims.iter().copied().collect();
                let values: SmallVec<[T; FEW]> = words.iter().map(|w| f(*w)).collect();
                Tensor::from_slice(shape, &values)
            }
        }
    }
    match ty {
        // Code stores one byte of a bool, four of an i32 or f32.
        ScalarType::Bool => of(words, dims, |w| w as u8 != 0),
        ScalarType::I32 => of(words, dims, |w| w as i32),
        ScalarType::I64 => of(words, dims, |w| w as i64),
        ScalarType::F32 => of(words, dims, |w| f32::from_bits(w as u32)),
        ScalarType::F64 => of(words, dims, f64::from_bits),
    }
}

/// Returns the vector of the first `n` elements that words hold.
fn vector(words: &[u64], n: usize, dtype: DType) -> Result<Tensor> {
    let mut bytes = Vec::with_capacity(size_of_val(words));
    for word in words {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.truncate(n * dtype.size());
    Tensor::from_bytes(dtype, [n].into_iter().collect(), &bytes)
}
