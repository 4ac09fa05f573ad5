//! Einsum equations: parsing, and the role of each dimension of an operand.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_tensor::PartialShape;
use smallvec::SmallVec;

/// A dimension's name: a letter, or `BROADCAST + i` for the `i`-th dimension under the ellipsis,
/// counted from the innermost.
pub type Label = u16;

/// The first label of an ellipsis.
pub const BROADCAST: Label = 256;

/// The labels of a tensor's dimensions.
pub type Labels = SmallVec<[Label; 6]>;

/// One side of a comma or an arrow.
#[derive(Clone, Debug)]
struct Subscript {
    /// Letters before the ellipsis, or all if there is none.
    head: Labels,
    /// Letters after the ellipsis.
    tail: Labels,
    ellipsis: bool,
}

impl Subscript {
    fn parse(text: &str) -> Result<Self> {
        let (head, tail, ellipsis) = match text.split_once("...") {
            Some((head, tail)) => (head, tail, true),
            None => (text, "", false),
        };
        let letters = |part: &str| {
            part.bytes()
                .map(|b| match b.is_ascii_alphabetic() {
                    true => Ok(Label::from(b)),
                    false => Err(invalid_argument!(
                        "Einsum subscript '{text}' may only have letters and at most one ellipsis"
                    )),
                })
                .collect::<Result<Labels>>()
        };
        Ok(Subscript {
            head: letters(head)?,
            tail: letters(tail)?,
            ellipsis,
        })
    }

    fn letters(&self) -> impl Iterator<Item = Label> {
        self.head.iter().chain(&self.tail).copied()
    }

    fn expanded(&self, n_broadcast: usize) -> Labels {
        let broadcast = (0..n_broadcast).rev().map(|i| BROADCAST + i as Label);
        self.head
            .iter()
            .copied()
            .chain(broadcast)
            .chain(self.tail.iter().copied())
            .collect()
    }

    /// Returns the number of dimensions that the ellipsis covers in input `i` of this rank.
    fn n_broadcast(&self, i: usize, rank: usize) -> Result<usize> {
        let named = self.letters().count();
        match rank.checked_sub(named) {
            Some(n) if n == 0 || self.ellipsis => Ok(n),
            _ => Err(invalid_argument!(
                "Expected input {i} to have rank {}{named} but got: {rank}",
                if self.ellipsis { "at least " } else { "" }
            )),
        }
    }
}

/// A parsed equation.
#[derive(Clone, Debug)]
pub struct Equation {
    inputs: SmallVec<[Subscript; 2]>,
    output: Subscript,
}

impl Equation {
    /// Parses an equation of one or two inputs, such as `abc,cd->abd` or `...ij->...ji`.
    pub fn parse(text: &str) -> Result<Self> {
        let plain: String = text.split_whitespace().collect();
        let mut sides = plain.split("->");
        let (Some(inputs), Some(output), None) = (sides.next(), sides.next(), sides.next()) else {
            return Err(invalid_argument!(
                "Expecting exactly one '->' in einsum equation: {text}"
            ));
        };
        let inputs = inputs
            .split(',')
            .map(Subscript::parse)
            .collect::<Result<SmallVec<_>>>()?;
        if inputs.len() > 2 {
            return Err(invalid_argument!(
                "Expecting 1 or 2 input subscripts in equation '{text}' but got: {}",
                inputs.len()
            ));
        }
        let output = Subscript::parse(output)?;
        for label in output.letters() {
            if !inputs
                .iter()
                .any(|s: &Subscript| s.letters().any(|l| l == label))
            {
                return Err(invalid_argument!(
                    "Einsum output subscripts for equation '{text}' has label '{}' which is not \
                     present in the input subscripts",
                    label as u8 as char
                ));
            }
        }
        Ok(Equation { inputs, output })
    }

    /// Returns the number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the number of dimensions of input `i` that have a letter.
    pub fn letters_of_input(&self, i: usize) -> usize {
        self.inputs[i].letters().count()
    }

    /// Returns the labels of input `i` of this rank.
    pub fn input_labels(&self, i: usize, rank: usize) -> Result<Labels> {
        let subscript = &self.inputs[i];
        Ok(subscript.expanded(subscript.n_broadcast(i, rank)?))
    }

    /// Returns the labels of the output, for inputs of these ranks.
    pub fn output_labels(&self, ranks: &[usize]) -> Result<Labels> {
        let mut n = 0;
        for (i, (s, &rank)) in self.inputs.iter().zip(ranks).enumerate() {
            n = n.max(s.n_broadcast(i, rank)?);
        }
        if n > 0 && !self.output.ellipsis {
            return Err(invalid_argument!(
                "Output contains {n} broadcasting dimension(s) but no ellipsis was found in the \
                 output subscripts."
            ));
        }
        Ok(self.output.expanded(n))
    }

    /// Returns whether input 1 is a matrix of weights for all ranks: each of its dimensions is
    /// either summed over with one of input 0 or a new one of the output.
    pub fn is_dense(&self) -> bool {
        let [x, w] = &self.inputs[..] else {
            return false;
        };
        let once = |s: &Subscript| {
            s.letters()
                .all(|l| s.letters().filter(|&m| m == l).count() == 1)
        };
        let has = |s: &Subscript, l| s.letters().any(|m| m == l);
        !w.ellipsis
            && [x, w, &self.output].iter().all(|s| once(s))
            && w.letters().all(|l| has(x, l) != has(&self.output, l))
            && x.letters().all(|l| has(w, l) != has(&self.output, l))
            && (!x.ellipsis || self.output.ellipsis)
    }

    /// Returns the output's shape, as far as those of the inputs determine it.
    pub fn infer(&self, inputs: &[PartialShape]) -> Result<PartialShape> {
        if inputs.len() != self.inputs.len() {
            return Err(invalid_argument!(
                "Expected {} inputs for einsum but got: {}",
                self.inputs.len(),
                inputs.len()
            ));
        }
        let mut sizes = Sizes::default();
        let mut ranks = SmallVec::<[usize; 2]>::new();
        for (i, (shape, subscript)) in inputs.iter().zip(&self.inputs).enumerate() {
            let Some(dims) = shape.dims() else {
                // Without an ellipsis the equation determines the rank.
                ranks.push(subscript.letters().count());
                if subscript.ellipsis {
                    return Ok(PartialShape::unknown());
                }
                continue;
            };
            ranks.push(dims.len());
            for (axis, (&label, &d)) in self
                .input_labels(i, dims.len())?
                .iter()
                .zip(dims)
                .enumerate()
            {
                sizes.add(label, d).map_err(|known| {
                    invalid_argument!(
                        "Expected dimension {known} at axis {axis} of the input shaped {shape} but \
                         got dimension {}",
                        d.unwrap_or(0)
                    )
                })?;
            }
        }
        let labels = self.output_labels(&ranks)?;
        Ok(PartialShape::of(labels.iter().map(|&l| sizes.get(l))))
    }
}

/// The size of each label.
#[derive(Clone, Debug, Default)]
pub struct Sizes(SmallVec<[(Label, Option<usize>); 8]>);

impl Sizes {
    /// Records the size `d` of a label. On a contradiction, returns the known size as the
    /// error.
    pub fn add(&mut self, label: Label, d: Option<usize>) -> std::result::Result<(), usize> {
        let Some((_, known)) = self.0.iter_mut().find(|(l, _)| *l == label) else {
            self.0.push((label, d));
            return Ok(());
        };
        match (*known, d) {
            (Some(1), _) if label >= BROADCAST => *known = d,
            (_, Some(1)) if label >= BROADCAST => {}
            (Some(k), Some(d)) if k != d => return Err(k),
            (None, d) => *known = d,
            _ => {}
        }
        Ok(())
    }

    /// Returns the size of a label; unknown if it was not recorded.
    pub fn get(&self, label: Label) -> Option<usize> {
        self.0.iter().find(|(l, _)| *l == label)?.1
    }
}

#[cfg(test)]
mod tests {
    use super::Equation;

    #[test]
    fn equations_are_checked() {
        assert!(Equation::parse("ab,bc->ac").is_ok());
        assert!(Equation::parse("ab,bc->ax").is_err());
    }
}
