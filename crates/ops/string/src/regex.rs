//! Regular expressions: RegexFullMatch and RegexReplace, with constant or fed patterns (TensorFlow:
//! `core/kernels/regex_full_match_op.cc` and `regex_replace_op.cc`).

use crate::packer::strings_of;
use crate::re2::translate;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::Tensor;
use regex::bytes::{Captures, Match, Regex, RegexBuilder};
use regex_syntax::hir::{Class, HirKind};
use std::ops::Range;

/// StaticRegexFullMatch, RegexFullMatch, StaticRegexReplace, RegexReplace.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "StaticRegexFullMatch",
        "input: string -> output: bool | pattern: string",
    )
    .shape(shapes::unchanged)
    .kernel(|build| {
        let whole = compile(build.attrs.str("pattern")?, true)?;
        Ok(Box::new(move |ctx: &mut KernelCtx| full_match(ctx, &whole)))
    })
    .not_differentiable(),
    Op::new(
        "RegexFullMatch",
        "input: string, pattern: string -> output: bool",
    )
    .shape(|ctx| fed_shape(ctx, 1))
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let whole = compile(&fed(ctx, 1, "Pattern")?, true)?;
            full_match(ctx, &whole)
        }))
    })
    .not_differentiable(),
    Op::new(
        "StaticRegexReplace",
        "input: string -> output: string | pattern: string; rewrite: string; \
         replace_global: bool = true",
    )
    .shape(shapes::unchanged)
    .kernel(static_replace)
    .not_differentiable(),
    Op::new(
        "RegexReplace",
        "input: string, pattern: string, rewrite: string -> output: string | \
         replace_global: bool = true",
    )
    .shape(|ctx| fed_shape(ctx, 2))
    .kernel(|build| {
        let all = build.attrs.bool("replace_global")?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let (pattern, rewrite) = (fed(ctx, 1, "Pattern")?, fed(ctx, 2, "Rewrite")?);
            Replacer::new(&pattern, rewrite.as_bytes(), all)?.replace(ctx)
        }))
    })
    .not_differentiable(),
];

fn fed_shape(ctx: &mut ShapeCtx, n: usize) -> Result<()> {
    for i in 1..=n {
        ctx.with_rank(i, 0)?;
    }
    shapes::unchanged(ctx)
}

/// Returns the only string of input `i`.
fn fed(ctx: &KernelCtx, i: usize, name: &str) -> Result<String> {
    let input = ctx.input(i)?;
    match input.strings()? {
        [one] if input.shape().is_scalar() => Ok(String::from_utf8_lossy(one).into_owned()),
        _ => Err(invalid_argument!(
            "{name} must be scalar, but received {}",
            ctx.shape(i)?
        )),
    }
}

/// Returns RE2's error for `pattern`, as TensorFlow reports it, if any.
fn complaint(pattern: &str) -> Option<String> {
    use regex_syntax::ast::ErrorKind;
    let error = regex_syntax::ast::parse::Parser::new()
        .parse(pattern)
        .err()?;
    let (start, end) = (error.span().start.offset, error.span().end.offset);
    let (at, rest) = (pattern.get(start..end)?, pattern.get(start..)?);
    let group = |open: &str| Some(&pattern[pattern.get(..end)?.rfind(open)?..]);
    Some(match error.kind() {
        ErrorKind::GroupUnclosed => format!("missing ): {pattern}"),
        ErrorKind::GroupUnopened => format!("unexpected ): {pattern}"),
        ErrorKind::ClassUnclosed => format!("missing ]: {rest}"),
        ErrorKind::ClassRangeInvalid => format!("invalid character class range: {at}"),
        ErrorKind::EscapeUnexpectedEof => "trailing \\".to_string(),
        ErrorKind::EscapeUnrecognized | ErrorKind::UnsupportedBackreference => {
            format!("invalid escape sequence: {at}")
        }
        ErrorKind::RepetitionMissing => {
            let first = match rest.starts_with('{') {
                true => rest.find('}')? + 1,
                false => rest.chars().next()?.len_utf8(),
            };
            let is_lazy = rest[first..].starts_with('?');
            let operator = &rest[..first + usize::from(is_lazy)];
            format!("no argument for repetition operator: {operator}")
        }
        ErrorKind::RepetitionCountInvalid => format!("invalid repetition size: {at}"),
        ErrorKind::GroupNameUnexpectedEof | ErrorKind::GroupNameInvalid => {
            let group = group("(?P<").or_else(|| group("(?<"))?;
            let len = group.find('>').map_or(group.len(), |at| at + 1);
            format!("invalid named capture group: {}", &group[..len])
        }
        ErrorKind::UnsupportedLookAround => format!("invalid perl operator: {at}"),
        _ => return None,
    })
}

/// Compiles a pattern for whole texts or parts of them. It matches whole UTF-8 characters.
fn compile(pattern: &str, whole: bool) -> Result<Regex> {
    let bad = |why: String| invalid_argument!("Invalid pattern: {pattern}, error: {why}");
    let build = |translated: &str| {
        RegexBuilder::new(translated).build().map_err(|e| {
            bad(complaint(pattern).unwrap_or_else(|| {
                let text = e.to_string();
                text.lines().last().unwrap_or_default().to_string()
            }))
        })
    };
    let translated = translate(pattern).map_err(bad)?;
    let compiled = build(&translated)?;
    match whole {
        false => Ok(compiled),
        true => build(&format!(r"\A(?:{translated})\z")),
    }
}

fn full_match(ctx: &mut KernelCtx, whole: &Regex) -> Result<()> {
    let input = ctx.input(0)?;
    let found: Vec<bool> = input.texts()?.iter().map(|s| whole.is_match(s)).collect();
    let out = Tensor::from_slice(input.shape().clone(), &found)?;
    ctx.set_output(0, out)
}

/// A parsed replacement text.
struct Rewrite {
    /// Text, or the number of a group.
    parts: Vec<std::result::Result<Vec<u8>, usize>>,
    largest: usize,
    /// Whether a backslash is followed by something else: the text ends there.
    is_cut: bool,
}

impl Rewrite {
    /// Parses a replacement: `\0` is the match, `\1` to `\9` are groups, `\\` is a backslash. Any
    /// other character after a backslash ends it, as in TensorFlow.
    fn new(text: &[u8]) -> Rewrite {
        let (mut parts, mut largest, mut is_cut) = (Vec::new(), 0, false);
        let mut literal = Vec::new();
        let mut bytes = text.iter();
        while let Some(byte) = bytes.next() {
            if *byte != b'\\' {
                literal.push(*byte);
                continue;
            }
            match bytes.next() {
                Some(digit @ b'0'..=b'9') => {
                    let group = usize::from(digit - b'0');
                    largest = largest.max(group);
                    parts.push(Ok(std::mem::take(&mut literal)));
                    parts.push(Err(group));
                }
                Some(b'\\') => literal.push(b'\\'),
                _ => {
                    is_cut = true;
                    break;
                }
            }
        }
        parts.push(Ok(literal));
        Rewrite {
            parts,
            largest,
            is_cut,
        }
    }

    /// Writes the text, with the texts of groups by their numbers.
    fn write<'t>(&self, group: impl Fn(usize) -> &'t [u8], out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Ok(text) => out.extend_from_slice(text),
                Err(number) => out.extend_from_slice(group(*number)),
            }
        }
    }
}

fn static_replace(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let replacer = Replacer::new(
        attrs.str("pattern")?,
        attrs.bytes("rewrite")?,
        attrs.bool("replace_global")?,
    )?;
    Ok(Box::new(move |ctx: &mut KernelCtx| replacer.replace(ctx)))
}

/// A pattern of single bytes, which a table finds: a class of ASCII characters, or a run of them.
struct ByteClass {
    has: [bool; 256],
    is_run: bool,
}

impl ByteClass {
    /// Returns the class that a pattern in the syntax of `regex` is, if it is one.
    fn of(pattern: &str) -> Option<ByteClass> {
        let mut parser = regex_syntax::ParserBuilder::new().utf8(false).build();
        let hir = parser.parse(pattern).ok()?;
        let (class, is_run) = match hir.kind() {
            HirKind::Repetition(r) if r.greedy && r.min == 1 && r.max.is_none() => {
                (r.sub.kind(), true)
            }
            class => (class, false),
        };
        let HirKind::Class(Class::Unicode(class)) = class else {
            return None;
        };
        let mut has = [false; 256];
        for range in class.iter() {
            let end = u8::try_from(range.end()).ok().filter(u8::is_ascii)?;
            has[range.start() as usize..=usize::from(end)].fill(true);
        }
        Some(ByteClass { has, is_run })
    }

    /// Returns the first match at or after `from`.
    fn find(&self, text: &[u8], from: usize) -> Option<Range<usize>> {
        let is_in = |b: &u8| self.has[usize::from(*b)];
        let start = from + text.get(from..)?.iter().position(is_in)?;
        let len = match self.is_run {
            true => text[start..].iter().take_while(|b| is_in(b)).count(),
            false => 1,
        };
        Some(start..start + len)
    }
}

/// Returns the place of a match.
fn whole(captures: &Captures) -> Range<usize> {
    captures.get(0).map_or(0..0, |m| m.range())
}

/// The matches of a text one after the other, as RE2's `GlobalReplace` finds them: none begins inside a UTF-8 character,
/// none is empty directly behind another.
struct Matches<'t, F, P> {
    text: &'t [u8],
    find: F,
    place: P,
    at: usize,
    /// The end of the last match.
    end: Option<usize>,
}

impl<'t, F, P> Matches<'t, F, P> {
    fn new(text: &'t [u8], find: F, place: P) -> Self {
        Matches {
            text,
            find,
            place,
            at: 0,
            end: None,
        }
    }
}

impl<M, F: Fn(usize) -> Option<M>, P: Fn(&M) -> Range<usize>> Iterator for Matches<'_, F, P> {
    type Item = M;

    fn next(&mut self) -> Option<M> {
        while self.at <= self.text.len() {
            let found = (self.find)(self.at)?;
            let place = (self.place)(&found);
            if place.is_empty() && self.end == Some(place.start) {
                self.at += character(self.text.get(self.at..)?);
                self.end = None;
                continue;
            }
            self.at = place.end;
            self.end = Some(place.end);
            return Some(found);
        }
        None
    }
}

/// Returns the length of the character that `text` begins with; 1 if that is not valid, or if there is none.
fn character(text: &[u8]) -> usize {
    (1..=4.min(text.len()))
        .find(|&len| std::str::from_utf8(&text[..len]).is_ok())
        .unwrap_or(1)
}

/// What replaces the parts of texts that match.
struct Replacer {
    pattern: Regex,
    class: Option<ByteClass>,
    rewrite: Rewrite,
    all: bool,
}

impl Replacer {
    fn new(pattern: &str, rewrite: &[u8], all: bool) -> Result<Replacer> {
        let pattern = compile(pattern, false)?;
        Ok(Replacer {
            class: ByteClass::of(pattern.as_str()),
            pattern,
            rewrite: Rewrite::new(rewrite),
            all,
        })
    }

    /// Writes the text with replacements; `None` if nothing matches.
    fn write(&self, text: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let most = if self.all { usize::MAX } else { 1 };
        // A single replacement fails as a whole then.
        if self.rewrite.is_cut && !self.all {
            return None;
        }
        // The end of the last match.
        let mut end = None;
        let mut copy = |found: &Range<usize>, out: &mut Vec<u8>| {
            let between = text.get(end.unwrap_or(0)..found.start);
            out.extend_from_slice(between.unwrap_or_default());
            end = Some(found.end);
        };
        match (self.rewrite.largest, &self.class) {
            (0, Some(class)) => {
                let first = class.find(text, 0);
                let all = std::iter::successors(first, |last| class.find(text, last.end));
                for found in all.take(most) {
                    copy(&found, out);
                    self.rewrite.write(|_| &text[found.clone()], out);
                }
            }
            // The whole match is found faster than its groups.
            (0, None) => {
                let find = |at| self.pattern.find_at(text, at);
                let place = |found: &Match| found.range();
                for found in Matches::new(text, find, place).take(most) {
                    copy(&found.range(), out);
                    self.rewrite.write(|_| found.as_bytes(), out);
                }
            }
            _ => {
                let find = |at| self.pattern.captures_at(text, at);
                for captures in Matches::new(text, find, whole).take(most) {
                    copy(&whole(&captures), out);
                    let group = |i: usize| captures.get(i).map_or(&b""[..], |m| m.as_bytes());
                    self.rewrite.write(group, out);
                }
            }
        }
        out.extend_from_slice(text.get(end?..).unwrap_or_default());
        Some(())
    }

    /// Sets output 0 to the texts of input 0 with replacements.
    fn replace(&self, ctx: &mut KernelCtx) -> Result<()> {
        // If the pattern does not have a referenced group, texts are unchanged.
        if self.rewrite.largest >= self.pattern.captures_len() {
            return ctx.set_output(0, ctx.input(0)?.clone());
        }
        let input = ctx.input(0)?;
        let texts = input.texts()?;
        let changed = strings_of(ctx, input.shape(), |i, out| {
            let text = texts.get(i);
            if !out.try_write(|out| self.write(text, out).is_some()) {
                out.part(texts, i, 0..text.len());
            }
        })?;
        ctx.set_output(0, changed)
    }
}

#[cfg(test)]
mod tests;
