//! The reverse of a loop: goes through its iterations from the last to the first.

use super::Gradient;
use super::loops::Var;
use super::walk::Walk;
use crate::{NodeId, Output};
use ferroflow_base::{Result, internal};
use ferroflow_opdef::Expr;

/// A variable of the reverse whose next value is not known yet: that of the loop, its Merge, its value in
/// the body and at the end.
struct OpenVar {
    var: Var,
    merge: Output,
    value: Output,
    last: Output,
}

impl Walk<'_, '_, '_> {
    /// Writes a loop that goes through the iterations of loop `of` from the last to the first.
    pub(super) fn reverse(&mut self, of: usize, parent: usize) -> Result<()> {
        let name = self.emitter.emit().frames.loops[of].name.clone();
        let prefix = format!("{}_grad", name.trim_end_matches("/while_context"));
        let parts = self.emitter.emit().parts(of)?.clone();
        let mut vars = Vec::new();
        let mut came = false;
        for var in &parts.vars {
            let dtype = self
                .emitter
                .emit()
                .builder
                .dtype(Output::new(var.merge, 0))?;
            if !self.reach.goes_through(dtype) || !self.reach.is_between(var.merge) {
                continue;
            }
            self.emitter.turn_to(parent, &prefix);
            let gradient = match var.exit {
                Some(exit) => self.total(Output::new(exit, 0))?,
                None => None,
            };
            came |= gradient.is_some();
            vars.push((*var, gradient));
        }
        if !came {
            return Ok(());
        }
        self.emitter.turn_to(parent, &prefix);
        let region = self.emitter.emit().begin_reverse(of, parent)?;
        let mut open = Vec::new();
        // Gradients of what is the same in all iterations, and where they go.
        let mut constant: Vec<(Output, NodeId)> = Vec::new();
        for (var, gradient) in vars {
            if var.is_same {
                let source = self.source_of(var.enter);
                if let Some(gradient) = gradient.filter(|_| self.is_needed(source)) {
                    self.add(source, gradient);
                }
                constant.push((Output::new(var.merge, 0), var.enter));
                continue;
            }
            let first = match gradient {
                Some(gradient) => self.term(gradient).dense().output(),
                None => self.zeros_at_end(&var)?,
            };
            self.emitter.check()?;
            let (merge, value, last) = self.emitter.emit().begin_var(region, first)?;
            self.add(var.next, Gradient::Dense(value));
            open.push(OpenVar {
                var,
                merge,
                value,
                last,
            });
        }
        constant.extend(parts.constants.iter().map(|e| (Output::new(*e, 0), *e)));
        self.frame(Some(of), region)?;
        for var in open {
            self.end_var(var, region, &prefix)?;
        }
        for (value, enter) in constant {
            self.sum_constant(value, enter, region, parent, &prefix)?;
        }
        self.emitter.check()
    }

    /// Adds up the gradients of a value that is the same in all iterations.
    fn sum_constant(
        &mut self,
        value: Output,
        enter: NodeId,
        region: usize,
        parent: usize,
        prefix: &str,
    ) -> Result<()> {
        self.emitter.turn_to(region, prefix);
        let source = self.source_of(enter);
        let total = self.total(value)?.filter(|_| self.is_needed(source));
        let sum = match total {
            None => return Ok(()),
            Some(Gradient::Slices(s)) => {
                Gradient::Slices(self.collected(source, s, region, parent, prefix)?)
            }
            Some(dense) => {
                let term = self.term(dense).dense();
                Gradient::Dense(self.summed(source, term, region, parent, prefix)?)
            }
        };
        self.add(source, sum);
        Ok(())
    }

    /// Ends the variable of the reverse that has the gradient of a variable.
    fn end_var(&mut self, var: OpenVar, region: usize, prefix: &str) -> Result<()> {
        let OpenVar {
            var,
            merge,
            value,
            last,
        } = var;
        self.emitter.turn_to(region, prefix);
        let next = match self.total(Output::new(var.merge, 0))? {
            Some(total) => self.term(total).dense(),
            None => self.zeros_before(&var, value),
        };
        self.emitter.check()?;
        let next = next.output();
        let exit = self.emitter.emit().end_var(region, merge, next, last)?;
        let source = self.source_of(var.enter);
        if self.is_needed(source) {
            self.add(source, Gradient::Dense(exit));
        }
        Ok(())
    }

    fn source_of(&self, enter: NodeId) -> Output {
        self.emitter.emit().builder.graph.node(enter).inputs[0]
    }

    /// Zeros like what a variable was after the loop.
    fn zeros_at_end(&self, var: &Var) -> Result<Output> {
        let exit = match var.exit {
            Some(exit) => Output::new(exit, 0),
            None => {
                let mut emit = self.emitter.emit();
                let of = emit.frames.of(var.merge);
                let of = of.ok_or_else(|| internal!("a variable outside any loop"))?;
                let frame = emit.forward(of)?;
                let merge = Output::new(var.merge, 0);
                let switch = emit.one(frame.place, "Switch", &[merge, frame.cond])?;
                let outside = emit.outside(of);
                let exit = emit.one(outside, "Exit", &[switch])?;
                emit.note(exit.node, frame.cond.node)?;
                exit
            }
        };
        Ok(self.emitter.expr(exit).zeros_like().output())
    }

    /// Zeros like what a variable was before the iteration.
    fn zeros_before(&self, var: &Var, after: Output) -> Expr<'_> {
        let before = self.emitter.expr(Output::new(var.merge, 0));
        match before.shape().to_full() {
            Some(_) => self.emitter.expr(after).zeros_like(),
            None => before.zeros_like(),
        }
    }
}
