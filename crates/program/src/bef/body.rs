//! The body of a function, decoded and checked: what an engine reads may be trusted.
//!
//! Checked are: all indices; that each register is written once and read as often as it says; that
//! the lists of readers say exactly what the lists of arguments say; that no kernel waits for
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
    /// Whether it runs as soon as one argument is there.
    pub non_strict: bool,
    /// Of each result, in the list of words.
    used_by: Span,
}

impl Kernel {
    /// How many arguments it has.
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
    /// Of the start and of each kernel; empty if nobody says.
    streams: Vec<u32>,
    waits: Vec<u32>,
    schedule: StaticSchedule,
}

impl Body {
    /// Offset of the function's position.
    pub fn location(&self) -> usize {
        self.location
    }

    /// How often each register is read, returning it included.
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

    /// Where a kernel stands, for its frame.
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
    /// says so.
    #[inline]
    pub fn streams(&self) -> Option<&[u32]> {
        (!self.streams.is_empty()).then_some(&self.streams)
    }

    /// How many arguments must be there before a kernel (from 1) runs.
    #[inline]
    pub fn waits(&self) -> &[u32] {
        &self.waits
    }

    /// How many arguments the function has.
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
    let uses = reader.ints()?;
    let uses: Vec<u32> = uses
        .into_iter()
        .map(u32::try_from)
        .collect::<Result<_, _>>()
        .ok()?;
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
    for (i, (offset, n_operands)) in table.into_iter().enumerate() {
        let kernel = read_kernel(file, &mut body, list.get(offset..)?)?;
        if i == 0 {
            // The kernel that stands for the arguments.
            let is_pseudo = kernel.code == PSEUDO_CODE as usize
                && n_operands == 0
                && [
                    kernel.refers.args,
                    kernel.refers.functions,
                    kernel.refers.attrs,
                ]
                .iter()
                .all(|span| span.len == 0);
            let (first, arguments) = body.results(&kernel).split_first()?;
            let mut numbers = arguments.iter().map(|r| r.register()).enumerate();
            let in_order = numbers.all(|(i, r)| r == i);
            let n_arguments = function.arguments.len();
            if !is_pseudo || first.register() != body.uses.len() || !in_order {
                return None;
            }
            if arguments.len() != n_arguments {
                return None;
            }
            let (sources, users) = kernel.used_by.of(&body.ranges).split_first()?;
            (body.sources, body.argument_users) = (*sources, users.to_vec());
            continue;
        }
        let wanted = match kernel.non_strict {
            true => kernel.n_args().min(1),
            false => kernel.n_args(),
        };
        if n_operands != wanted {
            return None;
        }
        body.waits.push(wanted as u32);
        body.kernels.push(kernel);
    }
    if let Some(streams) = file.streams(index) {
        if streams.len() != body.kernels.len() + 1 {
            return None;
        }
        body.streams = streams.to_vec();
    }
    Some(body)
}

fn read_kernel(file: &File, body: &mut Body, bytes: &[u8]) -> Option<Kernel> {
    let word = |i: usize| -> Option<u32> {
        let bytes = bytes.get(i.checked_mul(4)?..i.checked_mul(4)?.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let header = |i: usize| word(i).map(|w| w as usize);
    let (code, location) = (header(0)?, header(1)?);
    let counts = [header(2)?, header(3)?, header(4)?, header(5)?];
    let [n_args, n_attrs, n_functions, n_results] = counts;
    let metadata = word(6)?;
    let mut n_used = 0usize;
    let mut used_counts = Vec::new();
    // No count may be larger than the bytes that are there.
    if counts.iter().any(|n| *n > bytes.len() / 4) {
        return None;
    }
    for i in 0..n_results {
        let n = header(HEADER_WORDS + i)?;
        used_counts.push(n);
        n_used = n_used.checked_add(n)?;
    }
    let mut at = HEADER_WORDS + n_results;
    let mut take = |words: &mut Vec<u32>, n: usize| -> Option<Span> {
        if n > bytes.len() / 4 {
            return None;
        }
        let start = words.len();
        for i in 0..n {
            words.push(word(at + i)?);
        }
        at += n;
        Span::new(start..words.len())
    };
    let (mut registers, mut offsets) = (Vec::new(), Vec::new());
    take(&mut registers, n_args)?;
    take(&mut offsets, n_attrs)?;
    let functions = take(&mut body.tables.words, n_functions)?;
    take(&mut registers, n_results)?;
    let first_operand = body.operands.len();
    for register in registers {
        body.operands.push(operand(register)?);
    }
    let first_range = body.ranges.len();
    for n in used_counts {
        let range = take(&mut body.tables.words, n)?;
        body.ranges.push(range);
    }
    let first_attr = body.tables.attrs.len();
    for offset in offsets {
        let tag = file.attribute_tags().get(&(offset as usize)).copied();
        body.tables.attrs.push(AttrSlot {
            offset: offset as usize,
            kind: tag.map(|t| AttrKind(t >> 1)),
            typed: tag.is_some_and(|t| t & 1 != 0),
        });
    }
    let data = match n_attrs {
        0 => u32::MAX,
        _ => u32::try_from(body.tables.data.len()).ok()?,
    };
    if n_attrs > 0 {
        body.tables.data.push(OnceLock::new());
    }
    Some(Kernel {
        code,
        refers: References {
            args: Span::new(first_operand..first_operand + n_args)?,
            n_results: u32::try_from(n_results).ok()?,
            attrs: Span::new(first_attr..body.tables.attrs.len())?,
            functions,
            location,
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
        if let Some(later) = is_used_later.get_mut(operand.register()) {
            if !*later {
                *operand = operand.last();
            }
            *later |= is_read;
        }
    };
    body.returns.iter_mut().rev().for_each(|r| visit(r, true));
    for id in body.schedule.order().iter().rev() {
        let Some(kernel) = body.kernels.get(*id as usize - 1) else {
            continue;
        };
        let (start, n_args) = (kernel.refers.args.start as usize, kernel.n_args());
        let end = start + n_args + kernel.refers.n_results as usize;
        for (i, operand) in (body.operands.get_mut(start..end).unwrap_or(&mut []))
            .iter_mut()
            .enumerate()
            .rev()
        {
            visit(operand, i < n_args);
        }
    }
}

/// Marks results that are returned, or that kernels read which are not strict.
fn mark_early_results(body: &mut Body) {
    let not_strict = body.kernels.iter().filter(|k| k.non_strict);
    let asked = not_strict.flat_map(|k| body.args(k)).chain(&body.returns);
    let mut is_early = vec![false; body.uses.len()];
    for operand in asked {
        if let Some(early) = is_early.get_mut(operand.register()) {
            *early = true;
        }
    }
    for kernel in &body.kernels {
        let start = kernel.refers.args.start as usize + kernel.n_args();
        let results = body
            .operands
            .get_mut(start..start + kernel.refers.n_results as usize);
        for operand in results.into_iter().flatten() {
            if is_early.get(operand.register()) == Some(&true) {
                *operand = operand.early();
            }
        }
    }
}

fn operand(register: u32) -> Option<Operand> {
    let operand = Operand::new(register);
    (operand.register() == register as usize).then_some(operand)
}

fn check(file: &File, index: usize, body: &Body) -> Option<()> {
    let n_registers = body.uses.len();
    let n_kernels = body.kernels.len();
    let ensure = |ok: bool| ok.then_some(());
    // Who writes each register, how often it is read, and who reads it how often.
    let mut written = vec![false; n_registers];
    let mut uses = vec![0u32; n_registers];
    let mut reads: Vec<(u32, u32)> = Vec::new();
    let mut listed: Vec<(u32, u32)> = Vec::new();
    let mut write = |register: usize| {
        let slot = written.get_mut(register)?;
        ensure(!std::mem::replace(slot, true))
    };
    for i in 0..body.n_arguments() {
        write(i)?;
        listed.extend(body.argument_used_by(i).iter().map(|k| (i as u32, *k)));
    }
    for (id, kernel) in (1u32..).zip(&body.kernels) {
        ensure(kernel.code < file.n_kernels())?;
        let functions = body.functions(kernel).iter();
        ensure(
            functions
                .into_iter()
                .all(|f| (*f as usize) < file.functions().len()),
        )?;
        let attrs = body.attrs(kernel).iter();
        ensure(
            attrs
                .into_iter()
                .all(|a| a.offset <= file.attributes().len()),
        )?;
        for register in body.args(kernel).iter().map(|a| a.register()) {
            *uses.get_mut(register)? += 1;
            reads.push((register as u32, id));
        }
        for (i, result) in body.results(kernel).iter().enumerate() {
            let register = result.register();
            write(register)?;
            listed.extend(
                body.used_by(kernel, i)
                    .iter()
                    .map(|k| (register as u32, *k)),
            );
        }
    }
    for operand in &body.returns {
        *uses.get_mut(operand.register())? += 1;
    }
    ensure(written.iter().all(|w| *w))?;
    ensure(uses == body.uses)?;
    reads.sort_unstable();
    listed.sort_unstable();
    ensure(reads == listed)?;
    // Kernels without arguments are started once, and only they.
    let mut sources = body.sources().to_vec();
    sources.sort_unstable();
    let no_args = (1u32..).zip(&body.kernels).filter(|(_, k)| k.n_args() == 0);
    ensure(no_args.map(|(id, _)| id).eq(sources.iter().copied()))?;
    ensure(
        listed
            .iter()
            .all(|(_, k)| *k >= 1 && *k as usize <= n_kernels),
    )?;
    // Everything can run.
    let readers = |k: usize| {
        let kernel = &body.kernels[k];
        let results = 0..kernel.refers.n_results as usize;
        let readers = results.flat_map(|i| body.used_by(kernel, i));
        readers.map(|id| *id as usize - 1)
    };
    let mut pending = vec![0; n_kernels];
    (0..n_kernels).for_each(|k| readers(k).for_each(|reader| pending[reader] += 1));
    ensure(topological_order(0..n_kernels, &mut pending, readers).len() == n_kernels)?;
    if file.functions().get(index)?.kind == FunctionKind::Sync {
        let mut defined = vec![false; n_registers];
        for slot in defined.iter_mut().take(body.n_arguments()) {
            *slot = true;
        }
        for kernel in &body.kernels {
            let args = body.args(kernel).iter();
            ensure(
                args.into_iter()
                    .all(|a| defined.get(a.register()) == Some(&true)),
            )?;
            for result in body.results(kernel) {
                *defined.get_mut(result.register())? = true;
            }
        }
    }
    Some(())
}
