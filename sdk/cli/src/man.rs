//! `tandem man`: manual pages, made from the command lines' own definitions.

use crate::failure::Failure;
use clap::CommandFactory;
use std::io::Write;
use std::path::{Path, PathBuf};
use tandemd::config::Flags;

/// Writes the manual pages of tandem and tandemd.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of manual pages, such as /usr/share/man; man1 and man8 are made in it.
    folder: PathBuf,
}

pub(crate) fn run<C: CommandFactory>(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let pages = [("man1", "1", C::command()), ("man8", "8", Flags::command())];
    for (folder, section, command) in pages {
        let folder = args.folder.join(folder);
        let io = Failure::write(&folder);
        std::fs::create_dir_all(&folder).map_err(&io)?;
        // Subcommands are told whose they are.
        let mut command = command.disable_help_subcommand(true);
        command.build();
        write(&command, section, &folder).map_err(io)?;
    }
    writeln!(out, "pages in {}", args.folder.display())?;
    Ok(())
}

/// A page for the command and one for each of its subcommands, as `tandem-policy-new.1`.
fn write(command: &clap::Command, section: &str, folder: &Path) -> std::io::Result<()> {
    for subcommand in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        write(subcommand, section, folder)?;
    }
    let page = clap_mangen::Man::new(command.clone()).section(section);
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(folder.join(page.get_filename()), text)
}
