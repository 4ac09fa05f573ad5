//! The body of a function, decoded and checked: what an engine reads may be trusted.
//!
//! Checked are: all indices; that each register is written once and read as often as stated; that
//! the lists of readers agree with the lists of arguments; that no kernel waits for
//! itself; in a synchronous function, that kernels stand in the order in which they can run.

use super::format::{
    FunctionKind, HEADER_WORDS, NON_STRICT, PSEUDO_CODE, Reader, Section, corrupt,
};
use super::read::File;
use super::static_schedule::StaticSchedule;
use ferroflow_base::{Result, topological_order};
use ferroflow_host_context::{
    AttrKind, AttrSlot, CallSite, HostProgram, Operand, References, SiteTables, Span,
};
use std::sync::{Arc, OnceLock};

/// A kernel of a function.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Index of its name.
    pub code: usize,
    /// Its registers, its attributes, what it may call and the offset of its position.
    pub refers: References,
    /// Whether it runs as soon as one argument is available.
    pub non_strict: bool,
    /// Of each result, in the list of words.
    used_by: Span,
}

impl Kernel {
    /// The number of arguments.
    #[inline]
    pub fn n_args(&self) -> usize {
        self.refers.args.len as usize
    }
}

/// A decoded function.
#[derive(Debug)]
pub struct Body {
    location: usize,
    uses: Vec<u32>,
    kernels: Vec<Kernel>,
    returns: Vec<Operand>,
    /// Arguments and results of the kernels.
    operands: Vec<Operand>,
    /// Attributes; as words, what kernels call and the readers of their results.
    tables: SiteTables,
    /// Readers of each kernel's results, one range of words each.
    ranges: Vec<Span>,
    sources: Span,
    argument_users: Vec<Span>,
    /// Of the start and of each kernel; empty if the file has none.
    streams: Vec<u32>,
    waits: Vec<u32>,
    schedule: StaticSchedule,
}

impl Body {
    /// Offset of the function's position.
    pub fn location(&self) -> usize {
        self.location
    }

    /// The number of reads of each register, its return included.
    #[inline]
    pub fn register_uses(&self) -> &[u32] {
        &self.uses
    }

    /// The kernels; the first is number 1 in lists of readers.
    #[inline]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel of a number from 1.
    #[inline]
    pub fn kernel(&self, id: u32) -> Option<&Kernel> {
        self.kernels.get((id as usize).wrapping_sub(1))
    }

    /// The registers that are returned. Last uses are those in the order of [`Body::schedule`].
    #[inline]
    pub fn returns(&self) -> &[Operand] {
        &self.returns
    }

    /// Registers that all kernels read and write.
    #[inline]
    pub fn all_operands(&self) -> &[Operand] {
        &self.operands
    }

    /// Registers that the kernel reads, and those that it writes. Last uses are those in the order
    /// of [`Body::schedule`].
    #[inline]
    pub fn operands(&self, kernel: &Kernel) -> (&[Operand], &[Operand]) {
        let start = kernel.refers.args.start as usize;
        let rest = self.operands.get(start..).unwrap_or(&[]);
        let (args, rest) = rest
            .split_at_checked(kernel.refers.args.len as usize)
            .unwrap_or((&[], &[]));
        (
            args,
            rest.get(..kernel.refers.n_results as usize).unwrap_or(&[]),
        )
    }

    /// Registers that the kernel reads.
    #[inline]
    pub fn args(&self, kernel: &Kernel) -> &[Operand] {
        self.operands(kernel).0
    }

    /// Registers that the kernel writes.
    #[inline]
    pub fn results(&self, kernel: &Kernel) -> &[Operand] {
        self.operands(kernel).1
    }

    /// The call site of a kernel, for its frame.
    #[inline]
    pub fn site<'a>(
        &'a self,
        program: &'a Arc<dyn HostProgram>,
        kernel: &'a References,
    ) -> CallSite<'a> {
        CallSite {
            program,
            tables: &self.tables,
            kernel,
        }
    }

    /// Attributes of the kernel.
    #[inline]
    pub fn attrs(&self, kernel: &Kernel) -> &[AttrSlot] {
        kernel.refers.attrs.of(&self.tables.attrs)
    }

    /// Functions that the kernel may call.
    #[inline]
    pub fn functions(&self, kernel: &Kernel) -> &[u32] {
        kernel.refers.functions.of(&self.tables.words)
    }

    /// Kernels (from 1) that read result `i`, once for each time they do.
    #[inline]
    pub fn used_by(&self, kernel: &Kernel, i: usize) -> &[u32] {
        let span = kernel.used_by.of(&self.ranges).get(i);
        span.map_or(&[], |span| span.of(&self.tables.words))
    }

    /// Kernels (from 1) without arguments.
    #[inline]
    pub fn sources(&self) -> &[u32] {
        self.sources.of(&self.tables.words)
    }

    /// Kernels (from 1) that read argument `i`.
    #[inline]
    pub fn argument_used_by(&self, i: usize) -> &[u32] {
        let span = self.argument_users.get(i);
        span.map_or(&[], |span| span.of(&self.tables.words))
    }

    /// The order in which one thread runs the kernels while every value is available.
    #[inline]
    pub fn schedule(&self) -> &StaticSchedule {
        &self.schedule
    }

    /// The streams that the start of the function (0) and its kernels (from 1) run in, if the file
    /// has them.
    #[inline]
    pub fn streams(&self) -> Option<&[u32]> {
        (!self.streams.is_empty()).then_some(&self.streams)
    }

    /// The number of arguments that must be available before each kernel (from 1) runs.
    #[inline]
    pub fn waits(&self) -> &[u32] {
        &self.waits
    }

    /// The number of arguments of the function.
    pub fn n_arguments(&self) -> usize {
        self.argument_users.len()
    }
}

fn invalid() -> ferroflow_base::Status {
    corrupt("invalid Function section in BEF file")
}

pub(super) fn decode(file: &File, index: usize) -> Result<Body> {
    let mut body = read(file, index).ok_or_else(invalid)?;
    if check(file, index, &body).is_none() {
        return Err(invalid());
    }
    let is_async = file
        .functions()
        .get(index)
        .is_some_and(|f| f.kind == FunctionKind::Async);
    if is_async {
        let is_constant =
            |k: &Kernel| k.n_args() == 0 && file.kernel_name(k.code).starts_with("tfrt.constant.");
        body.schedule = StaticSchedule::new(&body, is_constant);
        mark_last_uses(&mut body);
        mark_early_results(&mut body);
    }
    Ok(body)
}

fn read(file: &File, index: usize) -> Option<Body> {
    let function = file.functions().get(index)?;
    if !function.kind.has_body() {
        return None;
    }
    let section = file.section(Section::Functions);
    let mut reader = Reader::new(section, function.offset);
    let location = reader.int()?;
    let uses = reader.ints()?.into_iter().map(u32::try_from);
    let uses: Vec<u32> = uses.collect::<Result<_, _>>().ok()?;
    let n_kernels = reader.count()?;
    let mut table = Vec::new();
    for _ in 0..n_kernels {
        table.push((reader.int()?, reader.int()?));
    }
    let n_results = function.results.len();
    let returns = (0..n_results).map(|_| operand(u32::try_from(reader.int()?).ok()?));
    let returns = returns.collect::<Option<Vec<_>>>()?;
    // Alignment is that of the file.
    let start = file.section_start(Section::Functions);
    let list = (start + reader.at).next_multiple_of(4) - start;
    let mut body = Body {
        location,
        uses,
        kernels: Vec::new(),
        returns,
        operands: Vec::new(),
        tables: SiteTables::default(),
        ranges: Vec::new(),
        sources: Span::default(),
        argument_users: Vec::new(),
        streams: Vec::new(),
        waits: vec![0],
        schedule: StaticSchedule::default(),
    };
    let list = section.get(list..)?;
    let mut kernels = table.into_iter();
    let (offset, n_operands) = kernels.next()?;
    let arguments = read_kernel(file, &mut body, list.get(offset..)?)?;
    ensure(n_operands == 0)?;
    set_arguments(&mut body, &arguments, function.arguments.len())?;
    for (offset, n_operands) in kernels {
        let kernel = read_kernel(file, &mut body, list.get(offset..)?)?;
        let wanted = match kernel.non_strict {
            true => kernel.n_args().min(1),
            false => kernel.n_args(),
        };
        ensure(n_operands == wanted)?;
        body.waits.push(wanted as u32);
        body.kernels.push(kernel);
    }
    if let Some(streams) = file.streams(index) {
        ensure(streams.len() == body.kernels.len() + 1)?;
        body.streams = streams.to_vec();
    }
    Some(body)
}

/// Reads the kernel that stands for the function's arguments: its results are a value for kernels without
/// arguments and the arguments.
fn set_arguments(body: &mut Body, kernel: &Kernel, n_arguments: usize) -> Option<()> {
    let References {
        args,
        functions,
        attrs,
        ..
    } = kernel.refers;
    let is_empty = [args, functions, attrs].iter().all(|span| span.len == 0);
    let (first, arguments) = body.results(kernel).split_first()?;
    let mut numbers = arguments.iter().map(|r| r.register()).enumerate();
    ensure(kernel.code == PSEUDO_CODE as usize && is_empty && arguments.len() == n_arguments)?;
    ensure(first.register() == body.uses.len() && numbers.all(|(i, r)| r == i))?;
    let (sources, users) = kernel.used_by.of(&body.ranges).split_first()?;
    (body.sources, body.argument_users) = (*sources, users.to_vec());
    Some(())
}

fn read_kernel(file: &File, body: &mut Body, bytes: &[u8]) -> Option<Kernel> {
    let (words, _) = bytes.as_chunks();
    let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
    let mut take = |n: u32| -> Option<Vec<u32>> {
        // No count may be larger than the bytes that are left.
        ensure(n as usize <= words.len())?;
        Some(words.by_ref().take(n as usize).collect())
    };
    let header: [u32; HEADER_WORDS] = take(HEADER_WORDS as u32)?.try_into().ok()?;
    let [
        code,
        location,
        n_args,
        n_attrs,
        n_functions,
        n_results,
        metadata,
    ] = header;
    let used_counts = take(n_results)?;
    let (args, offsets) = (take(n_args)?, take(n_attrs)?);
    let (functions, results) = (take(n_functions)?, take(n_results)?);
    let first_operand = body.operands.len();
    for register in args.into_iter().chain(results) {
        body.operands.push(operand(register)?);
    }
    let tables = &mut body.tables;
    let mut list = |words: Vec<u32>| {
        let start = tables.words.len();
        tables.words.extend(words);
        Span::new(start..tables.words.len())
    };
    let functions = list(functions)?;
    let first_range = body.ranges.len();
    for n in used_counts {
        body.ranges.push(list(take(n)?)?);
    }
    let first_attr = tables.attrs.len();
    for offset in offsets {
        let tag = file.attribute_tags().get(&(offset as usize)).copied();
        tables.attrs.push(AttrSlot {
            offset: offset as usize,
            kind: tag.map(|t| AttrKind(t >> 1)),
            typed: tag.is_some_and(|t| t & 1 != 0),
        });
    }
    let data = match n_attrs {
        0 => u32::MAX,
        _ => u32::try_from(tables.data.len()).ok()?,
    };
    if n_attrs > 0 {
        tables.data.push(OnceLock::new());
    }
    Some(Kernel {
        code: code as usize,
        refers: References {
            args: Span::new(first_operand..first_operand + n_args as usize)?,
            n_results,
            attrs: Span::new(first_attr..tables.attrs.len())?,
            functions,
            location: location as usize,
            data,
        },
        non_strict: metadata & NON_STRICT != 0,
        used_by: Span::new(first_range..body.ranges.len())?,
    })
}

/// Marks the uses of registers that are the last ones in the static schedule.
fn mark_last_uses(body: &mut Body) {
    let mut is_used_later = vec![false; body.uses.len()];
    let mut visit = |operand: &mut Operand, is_read: bool| {
        let later = &mut is_used_later[operand.register()];
        if !*later {
            *operand = operand.last();
        }
        *later |= is_read;
    };
    body.returns.iter_mut().rev().for_each(|r| visit(r, true));
    for id in body.schedule.order().iter().rev() {
        let kernel = &body.kernels[*id as usize - 1];
        let (start, n_args) = (kernel.refers.args.start as usize, kernel.n_args());
        let end = start + n_args + kernel.refers.n_results as usize;
        let operands = body.operands[start..end].iter_mut().enumerate();
        operands
            .rev()
            .for_each(|(i, operand)| visit(operand, i < n_args));
    }
}

/// Marks results that are returned, or that kernels read which are not strict.
fn mark_early_results(body: &mut Body) {
    let not_strict = body.kernels.iter().filter(|k| k.non_strict);
    let asked = not_strict.flat_map(|k| body.args(k)).chain(&body.returns);
    let mut is_early = vec![false; body.uses.len()];
    asked.for_each(|operand| is_early[operand.register()] = true);
    for kernel in &body.kernels {
        let start = kernel.refers.args.start as usize + kernel.n_args();
        let end = start + kernel.refers.n_results as usize;
        for operand in &mut body.operands[start..end] {
            if is_early[operand.register()] {
                *operand = operand.early();
            }
        }
    }
}

fn operand(register: u32) -> Option<Operand> {
    let operand = Operand::new(register);
    (operand.register() == register as usize).then_some(operand)
}

fn ensure(ok: bool) -> Option<()> {
    ok.then_some(())
}

fn check(file: &File, index: usize, body: &Body) -> Option<()> {
    for kernel in &body.kernels {
        let (functions, attrs) = (body.functions(kernel), body.attrs(kernel));
        ensure(kernel.code < file.n_kernels())?;
        ensure(
            functions
                .iter()
                .all(|f| (*f as usize) < file.functions().len()),
        )?;
        ensure(attrs.iter().all(|a| a.offset <= file.attributes().len()))?;
    }
    check_registers(body)?;
    // Everything can run.
    let n_kernels = body.kernels.len();
    let readers = |k: usize| {
        let kernel = &body.kernels[k];
        let results = 0..kernel.refers.n_results as usize;
        let readers = results.flat_map(|i| body.used_by(kernel, i));
        readers.map(|id| *id as usize - 1)
    };
    let mut pending = vec![0; n_kernels];
    (0..n_kernels).for_each(|k| readers(k).for_each(|reader| pending[reader] += 1));
    ensure(topological_order(0..n_kernels, &mut pending, readers).len() == n_kernels)?;
    match file.functions().get(index)?.kind {
        FunctionKind::Sync => check_order(body),
        _ => Some(()),
    }
}

/// Checks that each register is written once and read as often as stated, and that the lists of readers
/// agree with the arguments.
fn check_registers(body: &Body) -> Option<()> {
    let mut written = vec![false; body.uses.len()];
    let mut uses = vec![0u32; body.uses.len()];
    let mut reads: Vec<(usize, u32)> = Vec::new();
    let mut listed: Vec<(usize, u32)> = Vec::new();
    let mut write = |register: usize, users: &[u32]| {
        listed.extend(users.iter().map(|k| (register, *k)));
        let slot = written.get_mut(register)?;
        ensure(!std::mem::replace(slot, true))
    };
    for i in 0..body.n_arguments() {
        write(i, body.argument_used_by(i))?;
    }
    for (id, kernel) in (1u32..).zip(&body.kernels) {
        reads.extend(body.args(kernel).iter().map(|arg| (arg.register(), id)));
        for (i, result) in body.results(kernel).iter().enumerate() {
            write(result.register(), body.used_by(kernel, i))?;
        }
    }
    let returned = body.returns.iter().map(|operand| operand.register());
    for register in reads.iter().map(|(register, _)| *register).chain(returned) {
        *uses.get_mut(register)? += 1;
    }
    ensure(written.iter().all(|w| *w) && uses == body.uses)?;
    reads.sort_unstable();
    listed.sort_unstable();
    ensure(reads == listed)?;
    // Kernels without arguments are started once, and only they.
    let mut sources = body.sources().to_vec();
    sources.sort_unstable();
    let no_args = (1u32..).zip(&body.kernels).filter(|(_, k)| k.n_args() == 0);
    ensure(no_args.map(|(id, _)| id).eq(sources))
}

/// Checks that kernels stand in the order in which they can run.
fn check_order(body: &Body) -> Option<()> {
    let mut is_defined = vec![false; body.uses.len()];
    is_defined[..body.n_arguments()].fill(true);
    for kernel in &body.kernels {
        let mut args = body.args(kernel).iter();
        ensure(args.all(|a| is_defined[a.register()]))?;
        for result in body.results(kernel) {
            is_defined[result.register()] = true;
        }
    }
    Some(())
}
