//! Conditionals from Switch and Merge.

use super::GraphBuilder;
use super::context::{Context, Kind};
use crate::Output;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;

/// Builds a branch; returns its results.
pub(crate) type Branch<'f, 'r> = Box<dyn FnOnce(&mut GraphBuilder<'r>) -> Result<Vec<Output>> + 'f>;

impl<'r> GraphBuilder<'r> {
    /// The values of `then` if `pred`, a bool scalar, is true, else those of `otherwise`; only one
    /// of them runs. Both return equally many values of the same dtypes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if `pred` is not a bool or the branches return different dtypes, and the errors of the
    /// branches.
    pub fn cond(
        &mut self,
        name: &str,
        pred: Output,
        then: impl FnOnce(&mut Self) -> Result<Vec<Output>>,
        otherwise: impl FnOnce(&mut Self) -> Result<Vec<Output>>,
    ) -> Result<Vec<Output>> {
        let outer = self.current;
        let path = self.unique_scope(name);
        let scope = std::mem::replace(&mut self.scope, path.clone());
        let result = self.cond_in_scope(outer, &path, pred, then, otherwise);
        self.scope = scope;
        result
    }

    fn cond_in_scope(
        &mut self,
        outer: Option<usize>,
        path: &str,
        pred: Output,
        then: impl FnOnce(&mut Self) -> Result<Vec<Output>>,
        otherwise: impl FnOnce(&mut Self) -> Result<Vec<Output>>,
    ) -> Result<Vec<Output>> {
        let pred = self.route(pred, outer)?;
        if self.dtype(pred)? != DType::Bool {
            return Err(invalid_argument!("the condition must be a bool"));
        }
        let of_bool = || Attrs::default().with("T", AttrValue::Type(DType::Bool));
        let named = |part: &str| format!("{path}{part}");
        let (inputs, name) = ([pred, pred], named("Switch"));
        let switch = self.add_plain("Switch", &name, &inputs, of_bool(), outer)?;
        let pred_id = self.add_plain("Identity", &named("pred_id"), &[pred], of_bool(), outer)?;
        let branch = |this: &mut Self, side: bool| -> Result<usize> {
            let context = this.contexts.len();
            let name = named(if side { "switch_t" } else { "switch_f" });
            let from = [Output::new(switch.node, usize::from(side))];
            let pivot = this.add_plain("Identity", &name, &from, of_bool(), Some(context))?;
            this.contexts.push(Context {
                kind: Kind::Branch {
                    pred: pred_id,
                    side,
                },
                parent: outer,
                pivot: pivot.node,
                inside: FxHashMap::default(),
            });
            Ok(context)
        };
        let (on_true, on_false) = (branch(self, true)?, branch(self, false)?);
        let of_true = self.branch_results(on_true, then)?;
        let of_false = self.branch_results(on_false, otherwise)?;
        if of_true.len() != of_false.len() {
            return Err(invalid_argument!(
                "one branch returns {} values, the other {}",
                of_true.len(),
                of_false.len()
            ));
        }
        let mut merged = Vec::with_capacity(of_true.len());
        for (t, f) in of_true.into_iter().zip(of_false) {
            let (dtype, other) = (self.dtype(t)?, self.dtype(f)?);
            if dtype != other {
                return Err(invalid_argument!(
                    "one branch returns {dtype}, the other {other} in the same place"
                ));
            }
            let attrs = Attrs::default()
                .with("T", AttrValue::Type(dtype))
                .with("N", AttrValue::Int(2));
            merged.push(self.add_plain("Merge", &named("Merge"), &[f, t], attrs, outer)?);
        }
        Ok(merged)
    }

    fn branch_results(
        &mut self,
        context: usize,
        f: impl FnOnce(&mut Self) -> Result<Vec<Output>>,
    ) -> Result<Vec<Output>> {
        let results = self.inside(context, f)?;
        results
            .into_iter()
            .map(|r| self.route(r, Some(context)))
            .collect()
    }

    /// The values of the first branch whose condition is true, else those of `default`.
    ///
    /// # Errors
    /// As [`cond`](Self::cond).
    pub fn case<'f>(
        &mut self,
        name: &str,
        mut branches: Vec<(Output, Branch<'f, 'r>)>,
        default: Branch<'f, 'r>,
    ) -> Result<Vec<Output>> {
        if branches.is_empty() {
            return default(self);
        }
        let (pred, first) = branches.remove(0);
        self.cond(name, pred, first, |b| b.case(name, branches, default))
    }

    /// The values of branch number `index`, an int32 scalar; of the last one when it is out of
    /// range, as in TensorFlow.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there are no branches, and the errors of [`cond`](Self::cond).
    pub fn switch_case<'f>(
        &mut self,
        name: &str,
        index: Output,
        mut branches: Vec<Branch<'f, 'r>>,
    ) -> Result<Vec<Output>> {
        let last = branches.pop();
        let last = last.ok_or_else(|| invalid_argument!("switch_case needs a branch"))?;
        let mut tested = Vec::with_capacity(branches.len());
        for (i, branch) in branches.into_iter().enumerate() {
            let number = self.constant(&format!("{name}/branch_{i}"), Tensor::scalar(i as i32))?;
            let is_it = self.op("Equal").input(index).input(number).output()?;
            tested.push((is_it, branch));
        }
        self.case(name, tested, last)
    }
}
