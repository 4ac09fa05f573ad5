//! The body of a function, decoded and checked: what an engine reads may be trusted.
//!
//! Checked are: all indices; that each register is written once and read as often as it says; that
//! the lists of readers say exactly what the lists of arguments say; that no kernel waits for
//! itself; in a synchronous function, that kernels stand in the order in which they can run.

use super::format::{
    FunctionKind, HEADER_WORDS, NON_STRICT, PSEUDO_CODE, Reader, Section, corrupt,
};
use super::read::File;
use ferroflow_base::Result;
use ferroflow_opdef::host::{AttrKind, AttrSlot};
use std::ops::Range;

/// A kernel of a function.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Index of its name.
    pub code: usize,
    /// Offset of its position.
    pub location: usize,
    /// Whether it runs as soon as one argument is there.
    pub non_strict: bool,
    args: Span,
    attrs: Span,
    functions: Span,
    results: Span,
    /// Of each result, in the list of words.
    used_by: Span,
}

/// A range in half the space: a kernel shall fit into a cache line.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(range: Range<usize>) -> Option<Span> {
        Some(Span {
            start: u32::try_from(range.start).ok()?,
            end: u32::try_from(range.end).ok()?,
        })
    }

    #[inline]
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    fn is_empty(self) -> bool {
        self.start >= self.end
    }

    fn len(self) -> usize {
        self.range().len()
    }
}

/// A decoded function.
#[derive(Debug)]
pub struct Body {
    location: usize,
    uses: Vec<u32>,
    kernels: Vec<Kernel>,
    result_registers: Vec<u32>,
    words: Vec<u32>,
    attrs: Vec<AttrSlot>,
    /// Readers of each kernel's results, one range of `words` each.
    ranges: Vec<Span>,
    sources: Span,
    argument_users: Vec<Span>,
    /// Of the start and of each kernel; empty if nobody says.
    streams: Vec<u32>,
    waits: Vec<u32>,
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

    /// The registers that are returned.
    #[inline]
    pub fn result_registers(&self) -> &[u32] {
        &self.result_registers
    }

    #[inline]
    fn slice(&self, span: Span) -> &[u32] {
        self.words.get(span.range()).unwrap_or(&[])
    }

    /// Registers that the kernel reads.
    #[inline]
    pub fn args(&self, kernel: &Kernel) -> &[u32] {
        self.slice(kernel.args)
    }

    /// Attributes of the kernel.
    #[inline]
    pub fn attrs(&self, kernel: &Kernel) -> &[AttrSlot] {
        self.attrs.get(kernel.attrs.range()).unwrap_or(&[])
    }

    /// Functions that the kernel may call.
    #[inline]
    pub fn functions(&self, kernel: &Kernel) -> &[u32] {
        self.slice(kernel.functions)
    }

    /// Registers that the kernel writes.
    #[inline]
    pub fn results(&self, kernel: &Kernel) -> &[u32] {
        self.slice(kernel.results)
    }

    /// Kernels (from 1) that read result `i`, once for each time they do.
    #[inline]
    pub fn used_by(&self, kernel: &Kernel, i: usize) -> &[u32] {
        let spans = self.ranges.get(kernel.used_by.range());
        let span = spans.and_then(|s| s.get(i));
        span.map_or(&[], |span| self.slice(*span))
    }

    /// Kernels (from 1) without arguments.
    #[inline]
    pub fn sources(&self) -> &[u32] {
        self.slice(self.sources)
    }

    /// Kernels (from 1) that read argument `i`.
    #[inline]
    pub fn argument_used_by(&self, i: usize) -> &[u32] {
        let span = self.argument_users.get(i);
        span.map_or(&[], |span| self.slice(*span))
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
    let body = read(file, index).ok_or_else(invalid)?;
    if check(file, index, &body).is_none() {
        return Err(invalid());
    }
    Ok(body)
}

fn read(file: &File, index: usize) -> Option<Body> {
    let function = file.functions().get(index)?;
    if function.kind == FunctionKind::Native {
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
    let result_registers = (0..n_results).map(|_| u32::try_from(reader.int()?).ok());
    let result_registers = result_registers.collect::<Option<Vec<_>>>()?;
    // Alignment is that of the file.
    let start = file.section_start(Section::Functions);
    let list = (start + reader.at).next_multiple_of(4) - start;
    let mut body = Body {
        location,
        uses,
        kernels: Vec::new(),
        result_registers,
        words: Vec::new(),
        attrs: Vec::new(),
        ranges: Vec::new(),
        sources: Span::default(),
        argument_users: Vec::new(),
        streams: Vec::new(),
        waits: vec![0],
    };
    let list = section.get(list..)?;
    for (i, (offset, n_operands)) in table.into_iter().enumerate() {
        let kernel = read_kernel(file, &mut body, list.get(offset..)?)?;
        if i == 0 {
            // The kernel that stands for the arguments.
            let is_pseudo = kernel.code == PSEUDO_CODE as usize
                && n_operands == 0
                && [kernel.args, kernel.functions].iter().all(|r| r.is_empty())
                && kernel.attrs.is_empty();
            let results = body.words.get(kernel.results.range())?;
            let (first, arguments) = results.split_first()?;
            let in_order = arguments.iter().enumerate().all(|(i, r)| *r as usize == i);
            let n_arguments = function.arguments.len();
            if !is_pseudo || *first as usize != body.uses.len() || !in_order {
                return None;
            }
            if arguments.len() != n_arguments {
                return None;
            }
            let ranges = body.ranges.get(kernel.used_by.range())?;
            let (sources, users) = ranges.split_first()?;
            (body.sources, body.argument_users) = (*sources, users.to_vec());
            continue;
        }
        let wanted = match kernel.non_strict {
            true => kernel.args.len().min(1),
            false => kernel.args.len(),
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
    let args = take(&mut body.words, n_args)?;
    let mut offsets = Vec::new();
    take(&mut offsets, n_attrs)?;
    let functions = take(&mut body.words, n_functions)?;
    let results = take(&mut body.words, n_results)?;
    let first_range = body.ranges.len();
    for n in used_counts {
        let range = take(&mut body.words, n)?;
        body.ranges.push(range);
    }
    let first_attr = body.attrs.len();
    for offset in offsets {
        let tag = file.attribute_tags().get(&(offset as usize)).copied();
        body.attrs.push(AttrSlot {
            offset: offset as usize,
            kind: tag.map(|t| AttrKind(t >> 1)),
            typed: tag.is_some_and(|t| t & 1 != 0),
        });
    }
    Some(Kernel {
        code,
        location,
        non_strict: metadata & NON_STRICT != 0,
        args,
        attrs: Span::new(first_attr..body.attrs.len())?,
        functions,
        results,
        used_by: Span::new(first_range..body.ranges.len())?,
    })
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
    let mut write = |register: u32| {
        let slot = written.get_mut(register as usize)?;
        ensure(!std::mem::replace(slot, true))
    };
    for i in 0..body.n_arguments() {
        write(i as u32)?;
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
        for register in body.args(kernel) {
            *uses.get_mut(*register as usize)? += 1;
            reads.push((*register, id));
        }
        for (i, register) in body.results(kernel).iter().enumerate() {
            write(*register)?;
            listed.extend(body.used_by(kernel, i).iter().map(|k| (*register, *k)));
        }
    }
    for register in &body.result_registers {
        *uses.get_mut(*register as usize)? += 1;
    }
    ensure(written.iter().all(|w| *w))?;
    ensure(uses == body.uses)?;
    reads.sort_unstable();
    listed.sort_unstable();
    ensure(reads == listed)?;
    // Kernels without arguments are started once, and only they.
    let mut sources = body.sources().to_vec();
    sources.sort_unstable();
    let no_args = (1u32..)
        .zip(&body.kernels)
        .filter(|(_, k)| k.args.is_empty());
    ensure(no_args.map(|(id, _)| id).eq(sources.iter().copied()))?;
    ensure(
        listed
            .iter()
            .all(|(_, k)| *k >= 1 && *k as usize <= n_kernels),
    )?;
    // Everything can run: what is ready, and then what that makes ready.
    let mut waits: Vec<usize> = body.kernels.iter().map(|k| k.args.len()).collect();
    let mut ready = sources;
    let mut n_run = 0;
    let arguments = (0..body.n_arguments()).flat_map(|i| body.argument_used_by(i));
    let mut arrived: Vec<u32> = arguments.copied().collect();
    loop {
        for id in arrived.drain(..) {
            let n = waits.get_mut(id as usize - 1)?;
            *n = n.checked_sub(1)?;
            if *n == 0 {
                ready.push(id);
            }
        }
        let Some(id) = ready.pop() else {
            break;
        };
        n_run += 1;
        let kernel = body.kernels.get(id as usize - 1)?;
        for i in 0..kernel.results.len() {
            arrived.extend(body.used_by(kernel, i));
        }
    }
    ensure(n_run == n_kernels)?;
    if file.functions().get(index)?.kind == FunctionKind::Sync {
        let mut defined = vec![false; n_registers];
        for slot in defined.iter_mut().take(body.n_arguments()) {
            *slot = true;
        }
        for kernel in &body.kernels {
            let args = body.args(kernel).iter();
            ensure(
                args.into_iter()
                    .all(|r| defined.get(*r as usize) == Some(&true)),
            )?;
            for register in body.results(kernel) {
                *defined.get_mut(*register as usize)? = true;
            }
        }
    }
    Some(())
}
