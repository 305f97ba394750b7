//! Components that a careless or hostile author could ship, written by hand.

use tandem_lab::component::{encode_plain, encode_world};

/// Parameters of `place` by the canonical ABI: prompt, shared, restored, kept (2), cap, bytes
/// left, checkpoint bytes, cost (3), pass limit, most saves, boundaries (2).
const PLACE: &str = "(param $prompt i32) (param $shared i32) (param $restored i32) (param i32 i32 i32) \
                     (param i64 i64 i64 i64 i64) (param i32 i32 i32 i32) (result i32)";

/// What a component's functions do; the bodies are WAT.
pub(crate) struct Plugin<'a> {
    /// Imports, which come before everything else.
    pub(crate) imports: &'a str,
    /// Pages of memory at the start.
    pub(crate) pages: u32,
    /// More fields of the module.
    pub(crate) fields: &'a str,
    /// Leaves the address of (list address, count).
    pub(crate) place: &'a str,
    /// Leaves an index.
    pub(crate) evict: &'a str,
    /// Leaves nothing.
    pub(crate) observe: &'a str,
}

/// Saves nowhere, evicts the first, learns nothing.
pub(crate) const QUIET: Plugin<'_> =
    Plugin { imports: "", pages: 2, fields: "", place: "i32.const 16", evict: "i32.const 0", observe: "" };

impl Plugin<'_> {
    /// The core module.
    pub(crate) fn module(&self) -> Vec<u8> {
        let Plugin { imports, pages, fields, place, evict, observe } = self;
        // Memory is given out upwards and used again from the start: no call needs much.
        let text = format!(
            "(module
               {imports}
               (memory (export \"memory\") {pages})
               (global $next (mut i32) (i32.const 1024))
               {fields}
               (func (export \"cabi_realloc\") (param i32 i32 i32) (param $size i32) (result i32)
                 (local $at i32)
                 (if (i32.gt_u (i32.add (global.get $next) (local.get $size)) (i32.const 120000))
                   (then (global.set $next (i32.const 1024))))
                 (local.set $at (global.get $next))
                 (global.set $next (i32.and (i32.add (i32.add (local.get $at) (local.get $size)) (i32.const 15))
                                            (i32.const -16)))
                 (local.get $at))
               (func (export \"place\") {PLACE} {place})
               (func (export \"evict\") (param i32) (param $kept i32) (param $incoming i32) (result i32) {evict})
               (func (export \"observe\") (param i32 i32 i32 i32 i32 i32) {observe}))"
        );
        wat::parse_str(text).expect("the test's own module")
    }

    /// The component.
    pub(crate) fn component(&self) -> Vec<u8> {
        encode_plain(&self.module()).expect("the test's own component")
    }
}

/// A component of another world than the policies'.
pub(crate) fn of_world(wit: &str, module: &str) -> Vec<u8> {
    let core = wat::parse_str(module).expect("the test's own module");
    encode_world(&core, wit, "other").expect("the test's own component")
}
