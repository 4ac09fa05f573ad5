//! The optimizers' rules, as programs of one element: those of `crates/ops/training/src/rules.rs`.

use crate::ptx::{Args, Step};
use ferroflow_base::Result;
use ferroflow_opdef::Attrs;

/// A program while it is written. Operands are numbered as the op's inputs.
pub(super) struct Program {
    n_inputs: usize,
    pub(super) steps: Vec<Step>,
}

impl Program {
    pub(super) fn new(n_inputs: usize) -> Program {
        Program {
            n_inputs,
            steps: Vec::new(),
        }
    }

    fn push(&mut self, step: Step) -> usize {
        self.steps.push(step);
        self.n_inputs + self.steps.len() - 1
    }

    fn call(&mut self, function: &'static str, args: &[usize]) -> usize {
        self.push(Step::Call(function, Args::from_slice(args)))
    }

    fn number(&mut self, value: f32) -> usize {
        self.push(Step::Number(value))
    }

    fn binary(&mut self, function: ferroflow_opdef::BinaryFn, a: usize, b: usize) -> usize {
        self.push(Step::Binary(function, a, b))
    }

    fn add(&mut self, a: usize, b: usize) -> usize {
        self.binary(ferroflow_opdef::BinaryFn::Add, a, b)
    }

    fn sub(&mut self, a: usize, b: usize) -> usize {
        self.binary(ferroflow_opdef::BinaryFn::Sub, a, b)
    }

    fn mul(&mut self, a: usize, b: usize) -> usize {
        self.binary(ferroflow_opdef::BinaryFn::Mul, a, b)
    }
}

/// Writes the update of an element; returns the new values of the variables.
pub(super) type Rule = fn(&mut Program, &Attrs) -> Result<Vec<usize>>;

/// The rules by the names of their ops, without `Resource`, `Sparse` and `Apply`.
pub(super) const RULES: &[(&str, Rule)] = &[
    ("GradientDescent", |p, _| {
        let [var, lr, g] = [0, 1, 2];
        Ok(vec![p.call("ff_step", &[var, g, lr])])
    }),
    ("ProximalGradientDescent", |p, _| {
        let [var, lr, l1, l2, g] = [0, 1, 2, 3, 4];
        Ok(vec![p.call("ff_proximal", &[var, g, lr, l1, l2])])
    }),
    ("Momentum", |p, attrs| {
        let [var, accum, lr, g, momentum] = [0, 1, 2, 3, 4];
        let accum = p.call("ff_scaled_add", &[accum, g, momentum]);
        let var = match attrs.bool("use_nesterov")? {
            true => p.call("ff_nesterov", &[var, accum, g, lr, momentum]),
            false => p.call("ff_step", &[var, accum, lr]),
        };
        Ok(vec![var, accum])
    }),
    ("KerasMomentum", |p, attrs| {
        let [var, accum, lr, g, momentum] = [0, 1, 2, 3, 4];
        let accum = p.call("ff_keras_accum", &[accum, g, momentum, lr]);
        let var = match attrs.bool("use_nesterov")? {
            true => p.call("ff_keras_nesterov", &[var, accum, g, momentum, lr]),
            false => p.add(var, accum),
        };
        Ok(vec![var, accum])
    }),
    ("Adagrad", |p, attrs| {
        let [var, accum, lr, g] = [0, 1, 2, 3];
        let accum = squares(p, attrs, accum, g)?;
        Ok(vec![p.call("ff_adagrad", &[var, accum, g, lr]), accum])
    }),
    ("AdagradV2", |p, attrs| {
        let [var, accum, lr, epsilon, g] = [0, 1, 2, 3, 4];
        let accum = squares(p, attrs, accum, g)?;
        let var = p.call("ff_adagrad_v2", &[var, accum, g, lr, epsilon]);
        Ok(vec![var, accum])
    }),
    ("AdagradDA", |p, _| {
        let [sum, squares, g, lr, l1, l2, step] = [1, 2, 3, 4, 5, 6, 7];
        let sum = p.add(sum, g);
        let square = p.mul(g, g);
        let squares = p.add(squares, square);
        // The rates of l1 and l2 grow with the steps.
        let l1 = p.mul(l1, step);
        let one = p.number(1.0);
        let l2 = p.mul(l2, step);
        let var = p.call("ff_adagrad_da", &[sum, squares, lr, l1, l2, one]);
        Ok(vec![var, sum, squares])
    }),
    ("ProximalAdagrad", |p, _| {
        let [var, accum, lr, l1, l2, g] = [0, 1, 2, 3, 4, 5];
        let square = p.mul(g, g);
        let accum = p.add(accum, square);
        let lr = p.call("ff_adagrad_rate", &[lr, accum]);
        Ok(vec![p.call("ff_proximal", &[var, g, lr, l1, l2]), accum])
    }),
    ("Adadelta", |p, _| {
        let [var, accum, update, lr, rho, epsilon, g] = [0, 1, 2, 3, 4, 5, 6];
        let square = p.mul(g, g);
        let accum = p.call("ff_decay", &[accum, square, rho]);
        let by = p.call("ff_adadelta", &[update, accum, g, epsilon]);
        let var = p.call("ff_step", &[var, by, lr]);
        let square = p.mul(by, by);
        Ok(vec![var, accum, p.call("ff_decay", &[update, square, rho])])
    }),
    ("RMSProp", |p, _| {
        let [var, ms, mom, lr, rho, momentum, epsilon, g] = [0, 1, 2, 3, 4, 5, 6, 7];
        let square = p.mul(g, g);
        let ms = p.call("ff_approach", &[ms, square, rho]);
        let mom = p.call("ff_rms_prop", &[mom, momentum, g, lr, ms, epsilon]);
        Ok(vec![p.sub(var, mom), ms, mom])
    }),
    ("CenteredRMSProp", |p, _| {
        let [var, mg, ms, mom, lr, rho, momentum, epsilon, g] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
        let square = p.mul(g, g);
        let ms = p.call("ff_approach", &[ms, square, rho]);
        let mg = p.call("ff_approach", &[mg, g, rho]);
        let square = p.mul(mg, mg);
        let spread = p.sub(ms, square);
        let mom = p.call("ff_rms_prop", &[mom, momentum, g, lr, spread, epsilon]);
        Ok(vec![p.sub(var, mom), mg, ms, mom])
    }),
    ("Adam", |p, attrs| {
        let [var, m, v, power1, power2] = [0, 1, 2, 3, 4];
        let [lr, beta1, beta2, epsilon, g] = [5, 6, 7, 8, 9];
        let (m, v) = moments(p, [m, v], [beta1, beta2], g);
        let ahead = match attrs.bool("use_nesterov")? {
            true => p.call("ff_adam_ahead", &[m, g, beta1]),
            false => m,
        };
        let rate = p.call("ff_adam_rate", &[lr, power1, power2]);
        Ok(vec![
            p.call("ff_adam", &[var, ahead, v, rate, epsilon]),
            m,
            v,
        ])
    }),
    ("AdamWithAmsgrad", |p, _| {
        let [var, m, v, highest, power1, power2] = [0, 1, 2, 3, 4, 5];
        let [lr, beta1, beta2, epsilon, g] = [6, 7, 8, 9, 10];
        let (m, v) = moments(p, [m, v], [beta1, beta2], g);
        let highest = p.call("ff_larger", &[highest, v]);
        let rate = p.call("ff_adam_rate", &[lr, power1, power2]);
        let var = p.call("ff_adam", &[var, m, highest, rate, epsilon]);
        Ok(vec![var, m, v, highest])
    }),
    ("AdaMax", |p, _| {
        let [var, m, v, power1, lr, beta1, beta2, epsilon, g] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
        let m = p.call("ff_approach", &[m, g, beta1]);
        let v = p.call("ff_ada_max_slot", &[v, g, beta2]);
        let var = p.call("ff_ada_max", &[var, m, v, lr, epsilon, power1]);
        Ok(vec![var, m, v])
    }),
    ("AddSign", |p, _| sign(p, "ff_add_sign")),
    ("PowerSign", |p, _| sign(p, "ff_power_sign")),
    ("Ftrl", |p, attrs| {
        let zero = p.number(0.0);
        ftrl(p, attrs, [zero, 7])
    }),
    ("FtrlV2", |p, attrs| ftrl(p, attrs, [7, 8])),
];

fn squares(p: &mut Program, attrs: &Attrs, accum: usize, g: usize) -> Result<usize> {
    if !attrs.bool("update_slots")? {
        return Ok(accum);
    }
    let square = p.mul(g, g);
    Ok(p.add(accum, square))
}

fn moments(p: &mut Program, [m, v]: [usize; 2], betas: [usize; 2], g: usize) -> (usize, usize) {
    let m = p.call("ff_approach", &[m, g, betas[0]]);
    let square = p.mul(g, g);
    (m, p.call("ff_approach", &[v, square, betas[1]]))
}

fn sign(p: &mut Program, function: &'static str) -> Result<Vec<usize>> {
    let [var, m, lr, alpha, decay, beta, g] = [0, 1, 2, 3, 4, 5, 6];
    let m = p.call("ff_decay", &[m, g, beta]);
    Ok(vec![p.call(function, &[var, g, m, lr, alpha, decay]), m])
}

/// Follow the regularized leader, by the numbers of shrinkage and power.
fn ftrl(p: &mut Program, attrs: &Attrs, [shrinkage, power]: [usize; 2]) -> Result<Vec<usize>> {
    let [var, accum, linear, g, lr, l1, l2] = [0, 1, 2, 3, 4, 5, 6];
    let shrunk = p.call("ff_ftrl_gradient", &[g, var, shrinkage]);
    let square = p.mul(g, g);
    let next = p.add(accum, square);
    let now = p.call("ff_ftrl_power", &[next, power]);
    let before = p.call("ff_ftrl_power", &[accum, power]);
    let change = p.sub(now, before);
    let (add, finish) = match attrs.bool("multiply_linear_by_lr")? {
        true => ("ff_ftrl_linear_by_rate", "ff_ftrl_by_rate"),
        false => ("ff_ftrl_linear", "ff_ftrl"),
    };
    let linear = p.call(add, &[linear, shrunk, change, var, lr]);
    let var = p.call(finish, &[linear, now, lr, l1, l2]);
    Ok(vec![var, next, linear])
}
