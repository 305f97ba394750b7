//! What the platform tells of energy: the battery's fuel gauge, and how long the DSP was collapsed.
//!
//! Both are small text files of the kernel, and neither is to be relied on: a number that is
//! missing, no number, or out of any battery's range is no reading.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Where Linux and Android list batteries and chargers.
const SUPPLIES: &str = "/sys/class/power_supply";
/// Where Qualcomm's kernels tell of the compute DSP's power collapses.
const COLLAPSES: [&str; 2] = ["/sys/kernel/debug/qcom_stats/cdsp", "/sys/kernel/debug/qcom_sleep_stats/cdsp"];
/// Ticks of the counter that those durations count, a millisecond.
const TICKS_PER_MS: u64 = 19_200;
/// Longest text taken from such a file.
const MOST_BYTES: u64 = 4096;
/// More than this no phone's battery gives or holds: 100 W, 100 A, 100 V, 1 kWh, 100 Ah.
const MOST_MICROWATTS: u64 = 100_000_000;
const MOST_MICROAMPERES: u64 = 100_000_000;
const MOST_MICROVOLTS: u64 = 100_000_000;
const MOST_MICROWATT_HOURS: u64 = 1_000_000_000;
const MOST_MICROAMPERE_HOURS: u64 = 100_000_000;

/// Which files are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meters {
    battery: Option<PathBuf>,
    collapses: Option<PathBuf>,
}

/// A reading of the fuel gauge while the battery is what feeds the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// What is drawn, in microwatts.
    pub drawn: Option<u64>,
    /// What the battery holds, in microjoules.
    pub held: Option<u64>,
}

/// Power collapses of the DSP since the system started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collapses {
    /// How often.
    pub count: u64,
    /// How long, in milliseconds.
    pub ms: u64,
}

impl Meters {
    /// Those that the settings name; one that they do not is looked for where kernels have it, an
    /// empty name is none.
    pub fn find(battery: Option<&Path>, collapses: Option<&Path>) -> Self {
        let named = |path: &Path| Some(path.to_owned()).filter(|path| !path.as_os_str().is_empty());
        Meters {
            battery: battery.map_or_else(|| first_battery(Path::new(SUPPLIES)), named),
            collapses: collapses
                .map_or_else(|| COLLAPSES.iter().map(PathBuf::from).find(|path| text(path).is_some()), named),
        }
    }

    /// Whether there is anything to read.
    pub fn any(&self) -> bool {
        self.battery.is_some() || self.collapses.is_some()
    }

    /// The battery's folder.
    pub fn battery(&self) -> Option<&Path> {
        self.battery.as_deref()
    }

    /// Reads the fuel gauge. `None` without one, and while a charger feeds the device: what the
    /// battery then takes or gives says nothing of what is drawn.
    pub fn read(&self) -> Option<Reading> {
        let folder = self.battery.as_deref()?;
        let state = text(&folder.join("status"));
        if state.is_some_and(|state| matches!(state.trim(), "Charging" | "Full" | "Not charging")) {
            return None;
        }
        let field =
            |name: &str, most: u64| number(&folder.join(name)).filter(|value| (1..=most).contains(value));
        let volts = field("voltage_now", MOST_MICROVOLTS);
        // Some drivers count what leaves the battery as negative, so the sign says nothing.
        let drawn = field("power_now", MOST_MICROWATTS).or_else(|| {
            let amperes = field("current_now", MOST_MICROAMPERES)?;
            // Both at most 1e8, so the product fits.
            Some(amperes * volts? / 1_000_000).filter(|watts| (1..=MOST_MICROWATTS).contains(watts))
        });
        let hours = field("energy_now", MOST_MICROWATT_HOURS).or_else(|| {
            let charge = field("charge_now", MOST_MICROAMPERE_HOURS)?;
            Some(charge * volts? / 1_000_000).filter(|hours| (1..=MOST_MICROWATT_HOURS).contains(hours))
        });
        let reading = Reading { drawn, held: hours.map(|hours| hours * 3600) };
        Some(reading).filter(|reading| *reading != Reading::default())
    }

    /// Reads the collapse counters.
    pub fn collapses(&self) -> Option<Collapses> {
        let text = text(self.collapses.as_deref()?)?;
        let field = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
            line.trim_start_matches([':', '=', ' ', '\t']).trim().parse().ok()
        };
        Some(Collapses { count: field("Count")?, ms: field("Accumulated Duration")? / TICKS_PER_MS })
    }
}

/// The first battery that feeds the whole system, by name.
fn first_battery(supplies: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(supplies).ok()?;
    let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    folders.into_iter().find(|folder| {
        let is = |name: &str, value: &str| text(&folder.join(name)).is_some_and(|text| text.trim() == value);
        // A mouse's battery has the scope of a device.
        is("type", "Battery") && !is("scope", "Device")
    })
}

/// The beginning of a regular file.
fn text(path: &Path) -> Option<String> {
    // Looked at before opening: opening a pipe would wait for its writer.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}

/// A whole number's magnitude.
fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse::<i64>().ok().map(i64::unsigned_abs)
}

/// What the device is about, for the accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// Requests are at work.
    Busy,
    /// None are, and votes are held.
    Held,
    /// Votes are released.
    Released,
}

/// Time and energy of one kind of stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// All of its time, in milliseconds.
    pub ms: u64,
    /// Of that, time for which the gauge told what was drawn.
    pub metered_ms: u64,
    /// Energy drawn in that time, in microjoules.
    pub microjoules: u64,
}

impl Account {
    /// Mean power in microwatts, where at least a second was metered.
    pub fn microwatts(&self) -> Option<u64> {
        // A second of 100 W is 1e8 microjoules; decades of it fit.
        (self.metered_ms >= 1000).then(|| self.microjoules.saturating_mul(1000) / self.metered_ms)
    }
}

/// The accounts, from one reading to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    busy: Account,
    held: Account,
    released: Account,
    last: Option<(u64, Option<Reading>)>,
}

impl Ledger {
    /// Books the time since the last reading as `stretch`. `now` is in milliseconds.
    pub fn book(&mut self, stretch: Stretch, now: u64, reading: Option<Reading>) {
        let Some((then, before)) = self.last.replace((now, reading)) else { return };
        let ms = now.saturating_sub(then);
        let drawn = match (before, reading) {
            (Some(before), Some(after)) => energy(before, after, ms),
            _ => None,
        };
        let account = match stretch {
            Stretch::Busy => &mut self.busy,
            Stretch::Held => &mut self.held,
            Stretch::Released => &mut self.released,
        };
        account.ms = account.ms.saturating_add(ms);
        if let Some(microjoules) = drawn {
            account.metered_ms = account.metered_ms.saturating_add(ms);
            account.microjoules = account.microjoules.saturating_add(microjoules);
        }
    }

    /// Begins after a time that is nobody's, such as one without a device.
    pub fn begin(&mut self, now: u64, reading: Option<Reading>) {
        self.last = Some((now, reading));
    }

    /// The account of a kind of stretch.
    pub fn account(&self, stretch: Stretch) -> &Account {
        match stretch {
            Stretch::Busy => &self.busy,
            Stretch::Held => &self.held,
            Stretch::Released => &self.released,
        }
    }

    /// Mean energy of a step (a request), in microjoules: mean power at work, times the time at
    /// work, over the number of steps. `None` where the power is unknown.
    pub fn step_microjoules(&self, steps: u64) -> Option<u64> {
        self.busy.microwatts()?.saturating_mul(self.busy.ms).checked_div(1000)?.checked_div(steps)
    }
}

/// Energy between two readings, in microjoules: mean power over time, or what the battery holds less.
fn energy(before: Reading, after: Reading, ms: u64) -> Option<u64> {
    if let (Some(a), Some(b)) = (before.drawn, after.drawn) {
        // At most 1e8 microwatts; a stretch of 5,000 years would not fit.
        return ((a + b) / 2).checked_mul(ms).map(|nanojoules| nanojoules / 1000);
    }
    before.held?.checked_sub(after.held?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up sysfs tree.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let tree = Tree(tempfile::tempdir().unwrap());
            files.iter().for_each(|(name, text)| tree.write(name, text));
            tree
        }
        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        fn meters(&self) -> Meters {
            Meters::find(Some(self.0.path()), Some(&self.0.path().join("cdsp")))
        }
    }

    #[test]
    fn power_is_read_or_made_of_current_and_voltage() {
        let tree = Tree::new(&[("power_now", "1500000\n")]);
        assert_eq!(tree.meters().read(), Some(Reading { drawn: Some(1_500_000), held: None }));
        let files = [("current_now", "-400000\n"), ("voltage_now", "4000000\n"), ("status", "Discharging\n")];
        let tree = Tree::new(&files);
        assert_eq!(tree.meters().read(), Some(Reading { drawn: Some(1_600_000), held: None }));
        tree.write("charge_now", "2500000");
        let held = 2_500_000 * 4 * 3600;
        assert_eq!(tree.meters().read(), Some(Reading { drawn: Some(1_600_000), held: Some(held) }));
        tree.write("energy_now", "9000000");
        assert_eq!(tree.meters().read().unwrap().held, Some(9_000_000 * 3600));
    }

    #[test]
    fn a_charger_makes_it_no_reading() {
        for status in ["Charging", "Full", "Not charging"] {
            let tree = Tree::new(&[("power_now", "1500000"), ("status", status)]);
            assert_eq!(tree.meters().read(), None, "{status}");
        }
    }

    #[test]
    fn what_no_gauge_could_say_is_no_reading() {
        for bad in [
            "",
            "\n",
            "nan",
            "1e6",
            "0x10",
            "0",
            "99999999999999999999999",
            "9223372036854775807",
            "-9223372036854775808",
            "200000000",
            "12 34",
            "\u{2212}5",
            "1500000 uW",
        ] {
            for name in ["power_now", "current_now", "voltage_now", "charge_now"] {
                let tree = Tree::new(&[("current_now", "400000"), ("charge_now", "2500000")]);
                tree.write(name, bad);
                assert_eq!(tree.meters().read(), None, "{name} {bad:?}");
            }
        }
        let tree = Tree::new(&[("power_now", "5")]);
        std::fs::write(tree.0.path().join("power_now"), b"15\xff00").unwrap();
        assert_eq!(tree.meters().read(), None);
        std::fs::remove_file(tree.0.path().join("power_now")).unwrap();
        std::fs::create_dir(tree.0.path().join("power_now")).unwrap();
        assert_eq!(tree.meters().read(), None);
        tree.write("energy_now", &"9".repeat(100_000));
        assert_eq!(tree.meters().read(), None);
        assert_eq!(Meters::find(Some(Path::new("/nonexistent")), Some(Path::new(""))).read(), None);
        assert_eq!(Meters::find(Some(Path::new("")), Some(Path::new(""))), Meters::default());
    }

    #[test]
    fn collapses_are_counted_in_milliseconds() {
        let stats = "Count: 12\nLast Entered At: 5\nLast Exited At: 6\nAccumulated Duration: 38400000\n";
        let tree = Tree::new(&[("cdsp", stats)]);
        assert_eq!(tree.meters().collapses(), Some(Collapses { count: 12, ms: 2000 }));
        for bad in [
            "",
            "Count: 12\n",
            "Count: -1\nAccumulated Duration: 5\n",
            "Count: 1\nAccumulated Duration: x",
            "Accumulated Duration: 99999999999999999999999\nCount: 1\n",
            "Counting: 3\nAccumulated Duration: 1",
        ] {
            tree.write("cdsp", bad);
            assert_eq!(tree.meters().collapses(), None, "{bad:?}");
        }
    }

    #[test]
    fn the_first_battery_of_the_system_is_taken() {
        let tree = Tree::new(&[
            ("ac/type", "Mains\n"),
            ("hid-mouse/type", "Battery\n"),
            ("hid-mouse/scope", "Device\n"),
            ("main/type", "Battery\n"),
            ("other/type", "Battery\n"),
        ]);
        assert_eq!(first_battery(tree.0.path()), Some(tree.0.path().join("main")));
        assert_eq!(first_battery(&tree.0.path().join("ac")), None);
        assert_eq!(first_battery(Path::new("/nonexistent")), None);
    }

    #[test]
    fn energy_is_booked_by_what_the_device_was_about() {
        let drawn = |microwatts| Some(Reading { drawn: Some(microwatts), held: None });
        let mut ledger = Ledger::default();
        ledger.book(Stretch::Held, 1000, drawn(1_000_000));
        assert_eq!(*ledger.account(Stretch::Held), Account::default(), "nothing came before");
        ledger.book(Stretch::Busy, 3000, drawn(3_000_000));
        assert_eq!(
            *ledger.account(Stretch::Busy),
            Account { ms: 2000, metered_ms: 2000, microjoules: 4_000_000 }
        );
        assert_eq!(ledger.account(Stretch::Busy).microwatts(), Some(2_000_000));
        ledger.book(Stretch::Busy, 5000, None);
        ledger.book(Stretch::Busy, 6000, drawn(1));
        assert_eq!(ledger.account(Stretch::Busy).metered_ms, 2000, "a gap is not metered");
        assert_eq!(ledger.step_microjoules(2), Some(5_000_000), "five seconds of two watts, two steps");
        assert_eq!(ledger.step_microjoules(0), None);
        let held = |microjoules| Some(Reading { drawn: None, held: Some(microjoules) });
        ledger.book(Stretch::Released, 7000, held(50_000_000));
        ledger.book(Stretch::Released, 17_000, held(46_000_000));
        assert_eq!(ledger.account(Stretch::Released).microwatts(), Some(400_000));
        // A battery that holds more than before has been charged meanwhile; a clock does not go back.
        ledger.book(Stretch::Held, 18_000, held(90_000_000));
        ledger.book(Stretch::Held, 4000, held(u64::MAX));
        assert_eq!(ledger.account(Stretch::Held).metered_ms, 0);
        ledger.book(Stretch::Held, u64::MAX, drawn(MOST_MICROWATTS));
        ledger.book(Stretch::Held, 0, drawn(MOST_MICROWATTS));
        ledger.book(Stretch::Held, u64::MAX, drawn(MOST_MICROWATTS));
        assert_eq!(ledger.account(Stretch::Held).metered_ms, 0, "what does not fit is not metered");
    }
}
