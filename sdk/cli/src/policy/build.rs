//! `tandem policy build`.

use super::usage;
use crate::failure::Failure;
use std::io::Write;
use std::path::PathBuf;
use tandem_lab::component;

/// Builds a policy crate to a Wasm component, or makes one of a core module.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of a policy crate, or a core module (.wasm) that another language's compiler
    /// made and that exports the functions of policies/wit/1.0.0 by the canonical ABI.
    #[arg(default_value = ".")]
    path: PathBuf,
    /// Where to write the component; by default the crate's name beside its manifest.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let built = if args.path.is_dir() {
        component::build(&args.path, args.out.as_deref())
    } else {
        let target = args
            .out
            .as_deref()
            .ok_or_else(|| Failure::Usage("give --out for the component of a core module".to_owned()))?;
        component::build_plain(&args.path, target)
    };
    let built = built.map_err(usage)?;
    writeln!(out, "{}: {} bytes", built.path.display(), built.bytes)?;
    Ok(())
}
