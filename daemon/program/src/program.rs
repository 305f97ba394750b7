//! A program: the op list of one pass, and the check every device makes before running it.

use crate::op::{Act, DeltaForm, Op, StateOut};
use crate::tensor::{BufferId, DType, Tensor};

/// The ops of one pass, in order.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Run one after the other.
    pub ops: Vec<Op>,
}

/// What validation needs to know of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferInfo {
    /// Size in bytes.
    pub bytes: u64,
    /// Imported, not to be written.
    pub read_only: bool,
}

/// Why a program was refused. `op` is the index and name of the op at fault.
#[derive(Clone, Debug, thiserror::Error)]
#[error("op {index} ({name}): {fault}")]
pub struct ProgramError {
    /// Index in the program.
    pub index: usize,
    /// The op's name.
    pub name: &'static str,
    /// What is wrong.
    pub fault: Fault,
}

/// What can be wrong with an op.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    /// A tensor names a buffer that does not exist.
    #[error("{role} {tensor} lies in a buffer that does not exist")]
    NoBuffer {
        /// Which operand.
        role: &'static str,
        /// The tensor.
        tensor: Tensor,
    },
    /// A tensor reaches past its buffer, or its rows are empty or not made of whole blocks.
    #[error(
        "{role} {tensor} does not fit its buffer of {bytes} bytes, is misaligned, or its rows are empty or no whole blocks"
    )]
    Bounds {
        /// Which operand.
        role: &'static str,
        /// The tensor.
        tensor: Tensor,
        /// Size of the buffer.
        bytes: u64,
    },
    /// An output in an imported buffer.
    #[error("{role} {tensor} would be written, but its buffer is read-only")]
    ReadOnly {
        /// Which operand.
        role: &'static str,
        /// The tensor.
        tensor: Tensor,
    },
    /// A shape or type that does not fit the others.
    #[error("{role} is {tensor}, but the op needs {need}")]
    Shape {
        /// Which operand.
        role: &'static str,
        /// The tensor.
        tensor: Tensor,
        /// What would fit.
        need: String,
    },
    /// An output overlaps another operand.
    #[error("output {out} overlaps {role} {other}")]
    Overlap {
        /// The output.
        out: Tensor,
        /// Which operand.
        role: &'static str,
        /// The other operand.
        other: Tensor,
    },
    /// A rounding that the product cannot have.
    #[error("{role} {weight} is multiplied as {}, but takes {}", act.name(), takes(weight, *chosen))]
    Act {
        /// Which operand.
        role: &'static str,
        /// The weight.
        weight: Tensor,
        /// The rounding asked for.
        act: Act,
        /// Whether only some of its rows are wanted.
        chosen: bool,
    },
    /// An index beyond what it indexes.
    #[error("{what} {value} is not below {limit}")]
    Index {
        /// What the index counts.
        what: &'static str,
        /// Its value.
        value: u64,
        /// First value that is too large.
        limit: u64,
    },
}

fn takes(weight: &Tensor, chosen: bool) -> String {
    let own = Act::for_weight(weight.dtype).name();
    if chosen { format!("{own}, for its rows are chosen") } else { format!("{own} or f16_tile") }
}

struct Checker<'a> {
    lookup: &'a dyn Fn(BufferId) -> Option<BufferInfo>,
    reads: Vec<(&'static str, Tensor)>,
    writes: Vec<(&'static str, Tensor, bool)>,
}

impl Checker<'_> {
    fn bounds(&self, role: &'static str, t: &Tensor, write: bool) -> Result<(), Fault> {
        let info = (self.lookup)(t.buffer).ok_or(Fault::NoBuffer { role, tensor: *t })?;
        let fault = Fault::Bounds { role, tensor: *t, bytes: info.bytes };
        if t.width == 0 || t.stride < t.width {
            return Err(fault);
        }
        let align = match t.dtype {
            DType::F32 => 4,
            _ => 2,
        };
        match t.byte_range() {
            Some(range) if range.end <= info.bytes && t.offset.is_multiple_of(align) => {}
            _ => return Err(fault),
        }
        if write && info.read_only {
            return Err(Fault::ReadOnly { role, tensor: *t });
        }
        Ok(())
    }

    fn shape(role: &'static str, t: &Tensor, rows: u32, width: u32, types: &[DType]) -> Result<(), Fault> {
        if t.rows == rows && t.width == width && types.contains(&t.dtype) {
            return Ok(());
        }
        let names: Vec<String> = types.iter().map(ToString::to_string).collect();
        Err(Fault::Shape { role, tensor: *t, need: format!("[{rows} x {width}] of {}", names.join(" or ")) })
    }

    fn input(
        &mut self,
        role: &'static str,
        t: &Tensor,
        rows: u32,
        width: u32,
        types: &[DType],
    ) -> Result<(), Fault> {
        self.bounds(role, t, false)?;
        Self::shape(role, t, rows, width, types)?;
        self.reads.push((role, *t));
        Ok(())
    }

    /// An f32 input of any shape; the op's other operands are held to it.
    fn lead(&mut self, role: &'static str, t: &Tensor) -> Result<(), Fault> {
        self.input(role, t, t.rows, t.width, &[DType::F32])
    }

    fn output(
        &mut self,
        t: &Tensor,
        rows: u32,
        width: u32,
        types: &[DType],
        in_place: bool,
    ) -> Result<(), Fault> {
        self.bounds("out", t, true)?;
        Self::shape("out", t, rows, width, types)?;
        self.writes.push(("out", *t, in_place));
        Ok(())
    }

    fn weight(&mut self, role: &'static str, t: &Tensor, width: u32) -> Result<(), Fault> {
        self.input(role, t, t.rows, width, &DType::ALL)?;
        if t.stride != t.width {
            return Err(Fault::Shape { role, tensor: *t, need: "rows without gaps".into() });
        }
        Ok(())
    }

    /// A weight of a product, and how it is multiplied.
    fn multiplied(
        &mut self,
        role: &'static str,
        weight: &Tensor,
        width: u32,
        act: Act,
        chosen: bool,
    ) -> Result<(), Fault> {
        self.weight(role, weight, width)?;
        if act == Act::for_weight(weight.dtype) || act == Act::F16Tile && !chosen {
            return Ok(());
        }
        Err(Fault::Act { role, weight: *weight, act, chosen })
    }

    fn states(&mut self, states: &[StateOut], state: &Tensor, columns: u32) -> Result<(), Fault> {
        for s in states {
            index("state after column", u64::from(s.after), u64::from(columns))?;
            self.bounds("state", &s.to, true)?;
            Self::shape("state", &s.to, state.rows, state.width, F32)?;
            self.writes.push(("state", s.to, false));
        }
        Ok(())
    }

    fn aliasing(&self) -> Result<(), Fault> {
        for (i, (_, out, in_place)) in self.writes.iter().enumerate() {
            for (role, input) in &self.reads {
                let same = *in_place && out == input;
                if !same && out.overlaps(input) {
                    return Err(Fault::Overlap { out: *out, role, other: *input });
                }
            }
            for (role, other, _) in &self.writes[i + 1..] {
                if out.overlaps(other) {
                    return Err(Fault::Overlap { out: *out, role, other: *other });
                }
            }
        }
        Ok(())
    }
}

const F32: &[DType] = &[DType::F32];
const CELLS: &[DType] = &[DType::F32, DType::F16];

fn index(what: &'static str, value: u64, limit: u64) -> Result<(), Fault> {
    if value < limit { Ok(()) } else { Err(Fault::Index { what, value, limit }) }
}

fn divides(role: &'static str, t: &Tensor, whole: u32, parts: u32) -> Result<u32, Fault> {
    if parts > 0 && whole.is_multiple_of(parts) && whole > 0 {
        return Ok(whole / parts);
    }
    Err(Fault::Shape { role, tensor: *t, need: format!("{whole} to be a positive multiple of {parts}") })
}

impl Program {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an op.
    pub fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Checks every op: buffers exist, views lie inside them, shapes and types agree, outputs
    /// overlap nothing but the inputs they may replace, indices are in range. Devices call it
    /// before they touch memory; what passes is memory-safe to run.
    pub fn validate(&self, lookup: &dyn Fn(BufferId) -> Option<BufferInfo>) -> Result<(), ProgramError> {
        for (i, op) in self.ops.iter().enumerate() {
            let mut checker = Checker { lookup, reads: Vec::new(), writes: Vec::new() };
            check(&mut checker, op).and_then(|()| checker.aliasing()).map_err(|fault| ProgramError {
                index: i,
                name: op.name(),
                fault,
            })?;
        }
        Ok(())
    }
}

fn check(c: &mut Checker<'_>, op: &Op) -> Result<(), Fault> {
    match op {
        Op::Embed { table, ids, out, .. } => {
            c.weight("table", table, table.width)?;
            for id in ids.iter() {
                index("token id", u64::from(*id), u64::from(table.rows))?;
            }
            c.output(out, ids.len() as u32, table.width, F32, false)
        }
        Op::RmsNorm { x, weight, out, .. } => {
            c.lead("x", x)?;
            c.input("weight", weight, 1, x.width, F32)?;
            c.output(out, x.rows, x.width, F32, true)
        }
        Op::L2Norm { x, groups, out, .. } => {
            c.lead("x", x)?;
            divides("x", x, x.width, *groups)?;
            c.output(out, x.rows, x.width, F32, true)
        }
        Op::MatMul { x, products } => {
            c.lead("x", x)?;
            for p in products {
                c.multiplied("weight", &p.weight, x.width, p.act, p.rows.is_some())?;
                let outputs = match &p.rows {
                    None => p.weight.rows,
                    Some(rows) => {
                        for row in rows.iter() {
                            index("weight row", u64::from(*row), u64::from(p.weight.rows))?;
                        }
                        rows.len() as u32
                    }
                };
                c.output(&p.out, x.rows, outputs, F32, false)?;
            }
            Ok(())
        }
        Op::SwiGlu { x, gate, up, acts, out } => {
            c.lead("x", x)?;
            c.multiplied("gate", gate, x.width, acts[0], false)?;
            c.multiplied("up", up, x.width, acts[1], false)?;
            Checker::shape("up", up, gate.rows, x.width, &DType::ALL)?;
            c.output(out, x.rows, gate.rows, F32, false)
        }
        Op::SiluMul { gate: x, up: y, out }
        | Op::SigmoidMul { x, gate: y, out }
        | Op::Add { a: x, b: y, out } => {
            c.lead("first operand", x)?;
            c.input("second operand", y, x.rows, x.width, F32)?;
            c.output(out, x.rows, x.width, F32, true)
        }
        Op::Rope { x, heads, table, out } => {
            c.lead("x", x)?;
            let columns = divides("x", x, x.rows, *heads)?;
            c.input("table", table, columns, table.width, F32)?;
            if !table.width.is_multiple_of(2) || table.width > x.width {
                return Err(Fault::Shape {
                    role: "table",
                    tensor: *table,
                    need: format!("an even width of at most {}", x.width),
                });
            }
            c.output(out, x.rows, x.width, F32, true)
        }
        Op::Copy { x, out } => {
            c.input("x", x, x.rows, x.width, CELLS)?;
            c.output(out, x.rows, x.width, CELLS, false)
        }
        Op::Gather { x, rows, out } => {
            c.lead("x", x)?;
            for row in rows.iter() {
                index("row", u64::from(*row), u64::from(x.rows))?;
            }
            c.output(out, rows.len() as u32, x.width, F32, false)
        }
        Op::Attention { q, k, v, heads, kv_heads, past, out, .. } => {
            c.lead("q", q)?;
            let columns = divides("q", q, q.rows, *heads)?;
            divides("q", q, *heads, *kv_heads)?;
            let width = kv_heads.checked_mul(q.width).ok_or(Fault::Shape {
                role: "k",
                tensor: *k,
                need: "fewer heads".into(),
            })?;
            c.input("k", k, k.rows, width, CELLS)?;
            c.input("v", v, k.rows, width, CELLS)?;
            index("last visible cell", u64::from(*past) + u64::from(columns) - 1, u64::from(k.rows))?;
            c.output(out, q.rows, q.width, F32, false)
        }
        Op::Conv { x, state, kernel, bias, out, states, .. } => {
            c.lead("x", x)?;
            c.input("kernel", kernel, x.width, kernel.width, F32)?;
            if kernel.width < 2 || kernel.width > 16 {
                return Err(Fault::Shape { role: "kernel", tensor: *kernel, need: "2 to 16 taps".into() });
            }
            c.input("state", state, kernel.width - 1, x.width, F32)?;
            if let Some(bias) = bias {
                c.input("bias", bias, 1, x.width, F32)?;
            }
            c.output(out, x.rows, x.width, F32, false)?;
            c.states(states, state, x.rows)
        }
        Op::DeltaGates { alpha, beta, a, dt, decay, beta_out } => {
            c.lead("alpha", alpha)?;
            c.input("beta", beta, alpha.rows, alpha.width, F32)?;
            c.input("a", a, 1, alpha.width, F32)?;
            c.input("dt", dt, 1, alpha.width, F32)?;
            c.output(decay, alpha.rows, alpha.width, F32, decay == alpha)?;
            c.output(beta_out, alpha.rows, alpha.width, F32, beta_out == beta)
        }
        Op::GatedDelta { form, q, k, v, decay, beta, heads, key_heads, state, out, states } => {
            c.lead("q", q)?;
            c.input("k", k, q.rows, q.width, F32)?;
            let key_dim = divides("q", q, q.width, *key_heads)?;
            divides("q", q, *heads, *key_heads)?;
            c.lead("v", v)?;
            let value_dim = divides("v", v, v.width, *heads)?;
            Checker::shape("v", v, q.rows, v.width, F32)?;
            c.input("decay", decay, q.rows, *heads, F32)?;
            c.input("beta", beta, q.rows, *heads, F32)?;
            let rows = heads.checked_mul(key_dim).ok_or(Fault::Shape {
                role: "state",
                tensor: *state,
                need: "fewer heads".into(),
            })?;
            c.input("state", state, rows, value_dim, F32)?;
            if state.stride != state.width {
                return Err(Fault::Shape { role: "state", tensor: *state, need: "rows without gaps".into() });
            }
            if let DeltaForm::Chunked { position } = form {
                index("last position", u64::from(*position) + u64::from(q.rows), 1 << 31)?;
            }
            c.output(out, q.rows, v.width, F32, false)?;
            c.states(states, state, q.rows)
        }
        Op::GatedNorm { x, z, weight, out, .. } => {
            c.lead("x", x)?;
            c.input("z", z, x.rows, x.width, F32)?;
            c.input("weight", weight, 1, x.width, F32)?;
            c.output(out, x.rows, x.width, F32, true)
        }
    }
}
