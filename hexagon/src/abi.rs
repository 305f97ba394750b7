//! The packet ABI: a mirror of `dsp/include/packet.h`, held to it by the tests below.
//!
//! Written by hand rather than by bindgen, which needs libclang wherever the daemon is built.
//! The tests read the header's text, so a number or a field that differs fails them.

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: u32 = $value;)*

        /// All of the above by name, for the comparison with the header.
        #[cfg(test)]
        const NUMBERS: &[(&str, u32)] = &[$((stringify!($name), $value)),*];
    };
}

numbers! {
    /// First word of a request.
    MAGIC = 0x4d44_4e54;
    /// Version of the ABI.
    VERSION = 4;
    /// Request: who are you.
    HELLO = 1;
    /// Request: make a window known.
    MAP = 2;
    /// Request: forget it.
    UNMAP = 3;
    /// Request: run a batch.
    RUN = 4;
    /// Request: end.
    GOODBYE = 5;
    /// Flag of [`MAP`].
    READ_ONLY = 1;
    /// Map numbers are below.
    MAPS = 4096;
    /// The largest map.
    MAP_BYTES = 0x4000_0000;
    /// The largest batch.
    BATCH_BYTES = 0x10_0000;
    /// Most tensors of a packet.
    TENSORS = 64;
    /// Offsets and sizes of maps are multiples.
    PAGE = 0x1_0000;
    /// Done.
    OK = 0;
    /// Not a request.
    E_MAGIC = 1;
    /// Another version of the ABI.
    E_VERSION = 2;
    /// Unknown kind of request.
    E_KIND = 3;
    /// No such map.
    E_MAP = 4;
    /// The map's number is in use.
    E_MAP_USED = 5;
    /// The system refused a map.
    E_MAP_REFUSED = 6;
    /// A batch outside its map, too large or misaligned.
    E_BATCH = 7;
    /// A packet whose sizes do not add up.
    E_PACKET = 8;
    /// Unknown op.
    E_OP = 9;
    /// Wrong number of tensors or words.
    E_OPERANDS = 10;
    /// A type the operand cannot have.
    E_DTYPE = 11;
    /// A tensor outside its map.
    E_BOUNDS = 12;
    /// A misaligned tensor.
    E_ALIGN = 13;
    /// An output in a read-only map.
    E_READ_ONLY = 14;
    /// A shape that does not fit.
    E_SHAPE = 15;
    /// An output over another operand.
    E_OVERLAP = 16;
    /// An index out of range.
    E_INDEX = 17;
    /// A parameter out of range.
    E_PARAM = 18;
    /// Not enough on-chip memory.
    E_SCRATCH = 19;
    /// A batch without power votes.
    E_NO_VOTES = 20;
    /// Votes that change under a batch.
    E_BUSY = 21;
    /// The platform refused the votes.
    E_POWER = 22;
    /// The platform did not give the matrix unit.
    E_UNIT = 23;
    /// No vote.
    CORNER_OFF = 0;
    /// The lowest corner.
    CORNER_LOW = 1;
    /// The nominal corner.
    CORNER_NOMINAL = 2;
    /// The highest corner.
    CORNER_MAX = 3;
    /// Element type.
    F32 = 0;
    /// Element type.
    F16 = 1;
    /// Element type.
    Q4_0 = 2;
    /// Element type.
    Q4_1 = 3;
    /// Element type.
    Q5_0 = 6;
    /// Element type.
    Q8_0 = 8;
    /// Element type.
    Q4_K = 12;
    /// Element type.
    Q5_K = 13;
    /// Element type.
    Q6_K = 14;
    /// Element type.
    BF16 = 30;
    /// Added to the element type of a packed weight.
    PACKED = 0x100;
    /// Op.
    EMBED = 1;
    /// Op.
    RMS_NORM = 2;
    /// Op.
    L2_NORM = 3;
    /// Op.
    MATMUL = 4;
    /// Op.
    SWIGLU = 5;
    /// Op.
    SILU_MUL = 6;
    /// Op.
    SIGMOID_MUL = 7;
    /// Op.
    ADD = 8;
    /// Op.
    ROPE = 9;
    /// Op.
    COPY = 10;
    /// Op.
    GATHER = 11;
    /// Op.
    ATTENTION = 12;
    /// Op.
    CONV = 13;
    /// Op.
    DELTA_GATES = 14;
    /// Op.
    GATED_DELTA = 15;
    /// Op.
    GATED_NORM = 16;
    /// Op.
    MATMUL_TILES = 17;
    /// Op.
    SWIGLU_TILES = 18;
    /// Most weight tiles of one DMA transfer.
    TILES = 64;
    /// In place of a product's count of chosen rows.
    ALL_ROWS = 0xffff_ffff;
}

/// `struct tdm_request`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Request {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// [`HELLO`] and so on.
    pub kind: u32,
    /// Map number.
    pub map: u32,
    /// Comes back in the reply.
    pub sequence: u64,
    /// Of a new map.
    pub file_offset: u64,
    /// Of a new map or of a batch.
    pub bytes: u64,
    /// Of the batch in its map.
    pub offset: u32,
    /// Packets of the batch.
    pub count: u32,
    /// [`READ_ONLY`].
    pub flags: u32,
    /// File of a new map.
    pub file: u32,
    /// Zero.
    pub unused: [u32; 2],
}

/// `struct tdm_reply`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Reply {
    /// [`MAGIC`].
    pub magic: u32,
    /// The executor's [`VERSION`].
    pub version: u32,
    /// [`OK`] or an error.
    pub status: u32,
    /// Packet at fault.
    pub op: u32,
    /// The request's.
    pub sequence: u64,
    /// What was wrong.
    pub value: u64,
    /// What would have been right.
    pub limit: u64,
    /// Tensor at fault.
    pub operand: u32,
    /// Zero.
    pub unused: u32,
    /// Instructions run, where somebody counts.
    pub instructions: u64,
    /// Of those, vector instructions.
    pub vector_instructions: u64,
}

/// `struct tdm_power`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PowerRequest {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// [`CORNER_OFF`] and so on; off releases everything.
    pub clock: u32,
    /// As `clock`.
    pub bus: u32,
    /// 0 or 1.
    pub ddr: u32,
    /// 0 or 1.
    pub hmx: u32,
    /// 0 or 1.
    pub sleep: u32,
    /// Zero.
    pub unused: u32,
}

/// `struct tdm_power_reply`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PowerReply {
    /// [`MAGIC`].
    pub magic: u32,
    /// The executor's [`VERSION`].
    pub version: u32,
    /// [`OK`] or an error.
    pub status: u32,
    /// Word of the request at fault.
    pub operand: u32,
    /// What was wrong.
    pub value: u64,
    /// What would have been right.
    pub limit: u64,
}

/// `struct tdm_tensor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tensor {
    /// Map number.
    pub map: u32,
    /// Bytes from its start.
    pub offset: u32,
    /// Element type, [`PACKED`] added for packed weights.
    pub dtype: u32,
    /// Rows.
    pub rows: u32,
    /// Values a row.
    pub width: u32,
    /// Values from row to row.
    pub stride: u32,
}

/// `struct tdm_packet`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Packet {
    /// Of the whole packet.
    pub bytes: u32,
    /// [`EMBED`] and so on.
    pub op: u32,
    /// Tensors that follow.
    pub tensors: u32,
    /// Words that follow them.
    pub words: u32,
    /// By op.
    pub params: [u32; 8],
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Reply>() == 64);
const _: () = assert!(size_of::<Tensor>() == 24 && size_of::<Packet>() == 48);

const _: () = assert!(size_of::<PowerRequest>() == 32 && size_of::<PowerReply>() == 32);

/// Bytes of a request or reply.
pub const MESSAGE: usize = 64;
/// Bytes of power votes or their reply.
pub const POWER_MESSAGE: usize = 32;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

impl PowerRequest {
    /// As it travels.
    pub fn to_bytes(&self) -> [u8; POWER_MESSAGE] {
        let PowerRequest { magic, version, clock, bus, ddr, hmx, sleep, unused } = *self;
        let mut bytes = [0; POWER_MESSAGE];
        let words = [magic, version, clock, bus, ddr, hmx, sleep, unused];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

impl PowerReply {
    /// From what arrived.
    pub fn from_bytes(bytes: &[u8; POWER_MESSAGE]) -> Self {
        let (word, long) = (|at| word(bytes, at), |at| long(bytes, at));
        PowerReply {
            magic: word(0),
            version: word(4),
            status: word(8),
            operand: word(12),
            value: long(16),
            limit: long(24),
        }
    }
}

impl Request {
    /// A request of this kind, all else zero.
    pub fn new(kind: u32, sequence: u64) -> Self {
        Request { magic: MAGIC, version: VERSION, kind, sequence, ..Request::default() }
    }

    /// As it travels.
    pub fn to_bytes(&self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        let words = [(0, self.magic), (4, self.version), (8, self.kind), (12, self.map)];
        let more = [(40, self.offset), (44, self.count), (48, self.flags), (52, self.file)];
        for (at, word) in words.into_iter().chain(more) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        for (at, long) in [(16, self.sequence), (24, self.file_offset), (32, self.bytes)] {
            bytes[at..at + 8].copy_from_slice(&long.to_le_bytes());
        }
        bytes
    }
}

impl Reply {
    /// From what arrived.
    pub fn from_bytes(bytes: &[u8; MESSAGE]) -> Self {
        let (word, long) = (|at| word(bytes, at), |at| long(bytes, at));
        Reply {
            magic: word(0),
            version: word(4),
            status: word(8),
            op: word(12),
            sequence: long(16),
            value: long(24),
            limit: long(32),
            operand: word(40),
            unused: word(44),
            instructions: long(48),
            vector_instructions: long(56),
        }
    }
}

/// What a status means, for errors.
pub fn explain(reply: &Reply) -> String {
    let Reply { status, op, operand, value, limit, version, .. } = *reply;
    let at = format!("packet {op}, operand {operand}");
    match status {
        OK => "done".into(),
        E_MAGIC => format!("the DSP received {value:#x} instead of a request"),
        E_VERSION => format!(
            "the driver speaks version {value} of the packet ABI, the DSP's library version {version}: install the library that came with this daemon"
        ),
        E_KIND => format!("the DSP knows no request of kind {value}"),
        E_MAP => format!("{at}: there is no map {value}"),
        E_MAP_USED => format!("map {value} is in use"),
        E_MAP_REFUSED => format!("the DSP's system refused a map of {value} bytes (at most {limit})"),
        E_BATCH => format!("a batch of {value} bytes does not fit its map or the limit of {limit}"),
        E_PACKET => format!("packet {op} says {value} bytes where {limit} are left"),
        E_OP => format!("packet {op} is of the unknown op {value}"),
        E_OPERANDS => format!("{at}: {value} operands or words where {limit} are needed"),
        E_DTYPE => format!("{at}: type {value} is not possible there"),
        E_BOUNDS => format!("{at}: ends at byte {value} of a map of {limit}"),
        E_ALIGN => format!("{at}: offset {value} is no multiple of {limit}"),
        E_READ_ONLY => format!("{at}: map {value} is read-only"),
        E_SHAPE => format!("{at}: a size of {value} where {limit} is needed"),
        E_OVERLAP => format!("{at}: overlaps operand {value}"),
        E_INDEX => format!("{at}: index {value} is not below {limit}"),
        E_PARAM => format!("packet {op}, parameter {operand}: {value} does not go with {limit}"),
        E_SCRATCH => format!("{at}: needs {value} of on-chip memory or tasks, there are {limit}"),
        E_UNIT => "the platform did not give the matrix unit (HMX), so the batch was not run: end whatever else uses it, or keep integer products (prefill_products=integer)".into(),
        E_NO_VOTES => "a batch came while no power votes were held, or none for the matrix unit it needs, and was not run: vote before submitting (the daemon's power gate does; `Hexagon::new` votes once)".into(),
        other => format!("status {other}, which this driver does not know ({at}, {value}, {limit})"),
    }
}

/// What the answer to power votes means, for errors.
pub fn explain_power(reply: &PowerReply) -> String {
    let PowerReply { status, operand, value, limit, version, .. } = *reply;
    match status {
        OK => "the votes hold".into(),
        E_MAGIC => format!("the DSP received {value:#x} instead of power votes"),
        E_VERSION => format!(
            "the driver votes in version {value} of the packet ABI, the DSP's library knows version {version}: install the library that came with this daemon"
        ),
        E_PARAM => format!("word {operand} of the power votes is {value}, at most {limit} is possible"),
        E_BUSY => "votes can only change between batches, and one was running or other votes were being set: wait for the batch, then vote again".into(),
        E_POWER => format!(
            "the platform refused the power votes (clock corner {value}); nothing is held now: vote again, or start a new session"
        ),
        other => format!("status {other} to power votes, which this driver does not know ({value}, {limit})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::mem::offset_of;

    const HEADER: &str = include_str!("../dsp/include/packet.h");

    #[test]
    fn every_number_of_the_header_is_here_with_its_value_and_no_other() {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        let header: BTreeMap<&str, u32> = HEADER
            .lines()
            .filter_map(|line| {
                let mut words = line.strip_prefix("#define TDM_")?.split_whitespace();
                Some((words.next()?, number(words.next()?)?))
            })
            .collect();
        let here: BTreeMap<&str, u32> = NUMBERS.iter().copied().collect();
        assert_eq!(header, here);
        assert!(header.len() > 50, "only {} numbers found: has the header's form changed?", header.len());
    }

    #[test]
    fn every_field_lies_where_the_header_says() {
        let here = [
            ("tdm_request, magic", offset_of!(Request, magic)),
            ("tdm_request, version", offset_of!(Request, version)),
            ("tdm_request, kind", offset_of!(Request, kind)),
            ("tdm_request, map", offset_of!(Request, map)),
            ("tdm_request, sequence", offset_of!(Request, sequence)),
            ("tdm_request, file_offset", offset_of!(Request, file_offset)),
            ("tdm_request, bytes", offset_of!(Request, bytes)),
            ("tdm_request, offset", offset_of!(Request, offset)),
            ("tdm_request, count", offset_of!(Request, count)),
            ("tdm_request, flags", offset_of!(Request, flags)),
            ("tdm_request, file", offset_of!(Request, file)),
            ("tdm_reply, magic", offset_of!(Reply, magic)),
            ("tdm_reply, version", offset_of!(Reply, version)),
            ("tdm_reply, status", offset_of!(Reply, status)),
            ("tdm_reply, op", offset_of!(Reply, op)),
            ("tdm_reply, sequence", offset_of!(Reply, sequence)),
            ("tdm_reply, value", offset_of!(Reply, value)),
            ("tdm_reply, limit", offset_of!(Reply, limit)),
            ("tdm_reply, operand", offset_of!(Reply, operand)),
            ("tdm_reply, instructions", offset_of!(Reply, instructions)),
            ("tdm_reply, vector_instructions", offset_of!(Reply, vector_instructions)),
            ("tdm_tensor, map", offset_of!(Tensor, map)),
            ("tdm_tensor, offset", offset_of!(Tensor, offset)),
            ("tdm_tensor, dtype", offset_of!(Tensor, dtype)),
            ("tdm_tensor, rows", offset_of!(Tensor, rows)),
            ("tdm_tensor, width", offset_of!(Tensor, width)),
            ("tdm_tensor, stride", offset_of!(Tensor, stride)),
            ("tdm_packet, bytes", offset_of!(Packet, bytes)),
            ("tdm_packet, op", offset_of!(Packet, op)),
            ("tdm_packet, tensors", offset_of!(Packet, tensors)),
            ("tdm_packet, words", offset_of!(Packet, words)),
            ("tdm_packet, params", offset_of!(Packet, params)),
        ];
        let power = [
            ("tdm_power, magic", offset_of!(PowerRequest, magic)),
            ("tdm_power, version", offset_of!(PowerRequest, version)),
            ("tdm_power, clock", offset_of!(PowerRequest, clock)),
            ("tdm_power, bus", offset_of!(PowerRequest, bus)),
            ("tdm_power, ddr", offset_of!(PowerRequest, ddr)),
            ("tdm_power, hmx", offset_of!(PowerRequest, hmx)),
            ("tdm_power, sleep", offset_of!(PowerRequest, sleep)),
            ("tdm_power_reply, magic", offset_of!(PowerReply, magic)),
            ("tdm_power_reply, version", offset_of!(PowerReply, version)),
            ("tdm_power_reply, status", offset_of!(PowerReply, status)),
            ("tdm_power_reply, operand", offset_of!(PowerReply, operand)),
            ("tdm_power_reply, value", offset_of!(PowerReply, value)),
            ("tdm_power_reply, limit", offset_of!(PowerReply, limit)),
        ];
        let here: Vec<(&str, usize)> = here.into_iter().chain(power).collect();
        let lines: Vec<&str> = HEADER.lines().filter_map(|line| line.strip_prefix("TDM_FIELD(")).collect();
        assert_eq!(lines.len(), here.len(), "fields of the header and fields named here");
        for (field, at) in here {
            let line = format!("{field}, {at});");
            assert!(lines.contains(&line.as_str()), "{field} is at {at} here, but the header has no {line}");
        }
    }

    #[test]
    fn messages_travel_as_they_lie_in_memory() {
        let request =
            Request { map: 7, bytes: 1 << 40, offset: 3, flags: 9, ..Request::new(RUN, 0x1234_5678_9abc) };
        let bytes = request.to_bytes();
        assert_eq!(bytes[offset_of!(Request, map)], 7);
        assert_eq!(bytes[offset_of!(Request, bytes) + 5], 1);
        assert_eq!(bytes[offset_of!(Request, sequence)], 0xbc);
        assert_eq!(bytes[offset_of!(Request, flags)], 9);
        let mut reply = [0; MESSAGE];
        reply[offset_of!(Reply, limit) + 4] = 2;
        reply[offset_of!(Reply, operand)] = 5;
        let reply = Reply::from_bytes(&reply);
        assert_eq!((reply.limit, reply.operand), (2 << 32, 5));
        let votes = PowerRequest { clock: 3, sleep: 1, ..PowerRequest::default() }.to_bytes();
        assert_eq!(votes[offset_of!(PowerRequest, clock)], 3);
        assert_eq!(votes[offset_of!(PowerRequest, sleep)], 1);
        let mut reply = [0; POWER_MESSAGE];
        reply[offset_of!(PowerReply, operand)] = 5;
        reply[offset_of!(PowerReply, limit) + 4] = 2;
        let reply = PowerReply::from_bytes(&reply);
        assert_eq!((reply.limit, reply.operand), (2 << 32, 5));
    }
}
