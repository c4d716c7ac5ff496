//! The layers of a jail, by name, and how a test takes one off.
//!
//! A jail is strict unless a test says otherwise: [`Layers::ALL`] is what every
//! sandbox of a daemon gets, and no setting, variable or request changes it. A test
//! that shows what a layer stops has to see the same attempt succeed without it.

/// One of the things that stand around a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Layer {
    /// An account of its own, where the daemon is root.
    Account,
    /// Limits on open files, and no core dumps.
    Limits,
    /// No program that it runs gains privileges.
    NoNewPrivileges,
    /// The system call filter.
    Seccomp,
    /// Landlock, all versions: the memory and `/proc` of processes outside are closed.
    NoPtrace,
    /// Landlock 1: the paths it may reach.
    Files,
    /// Landlock 3: truncation is a right of its own.
    Truncate,
    /// Landlock 4: no TCP.
    NoTcp,
    /// Landlock 5: no ioctl of devices.
    DeviceIoctl,
    /// Landlock 6: no signals to processes outside.
    NoSignals,
    /// Landlock 6: no abstract sockets of processes outside.
    NoAbstractSockets,
}

/// Every layer, with its name in a sandbox's description and the version of landlock that
/// it needs; 0 for those that are not landlock's.
const LAYERS: [(Layer, &str, u32); 11] = [
    (Layer::Account, "account", 0),
    (Layer::Limits, "limits", 0),
    (Layer::NoNewPrivileges, "no-new-privileges", 0),
    (Layer::Seccomp, "seccomp", 0),
    (Layer::NoPtrace, "landlock-no-ptrace", 1),
    (Layer::Files, "landlock-files", 1),
    (Layer::Truncate, "landlock-truncate", 3),
    (Layer::NoTcp, "landlock-no-tcp", 4),
    (Layer::DeviceIoctl, "landlock-device-ioctl", 5),
    (Layer::NoSignals, "landlock-no-signals", 6),
    (Layer::NoAbstractSockets, "landlock-no-abstract-sockets", 6),
];

impl Layer {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        LAYERS.iter().map(|(layer, _, _)| *layer)
    }

    /// Its name in a sandbox's description.
    pub fn name(self) -> &'static str {
        LAYERS[self as usize].1
    }

    /// The layer of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|layer| layer.name() == name)
    }

    /// The version of landlock that it needs, 0 where it is not landlock's.
    pub fn landlock(self) -> u32 {
        LAYERS[self as usize].2
    }

    /// Whether there can be no `self` without `other`.
    fn needs(self, other: Self) -> bool {
        match other {
            // Who may gain privileges may not confine itself, says the kernel.
            Self::NoNewPrivileges => self == Self::Seccomp || self.landlock() > 0,
            // Every ruleset closes the memory of processes outside.
            Self::NoPtrace => self.landlock() > 0,
            // Rights on files, which later versions know.
            Self::Files => matches!(self, Self::Truncate | Self::DeviceIoctl),
            _ => false,
        }
    }
}

/// Which layers are put on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Layers(u16);

impl Layers {
    /// Every layer that the kernel has: what a sandbox gets.
    pub const ALL: Self = Self((1 << LAYERS.len()) - 1);

    /// None, where nothing is run or a test wants to see an attempt succeed.
    pub const NONE: Self = Self(0);

    /// Whether this layer is put on.
    pub fn has(self, layer: Layer) -> bool {
        self.0 & (1 << layer as u8) != 0
    }

    /// Takes a layer off, and with it those that need it.
    pub fn without(self, layer: Layer) -> Self {
        Layer::all()
            .filter(|other| *other == layer || other.needs(layer))
            .fold(self, |layers, other| Self(layers.0 & !(1 << other as u8)))
    }

    /// Takes off what a kernel with this version of landlock does not have.
    pub fn of_landlock(self, version: u32) -> Self {
        Layer::all()
            .filter(|layer| layer.landlock() > version)
            .fold(self, Self::without)
    }

    /// Those that are taken off.
    pub fn missing(self) -> impl Iterator<Item = Layer> {
        Layer::all().filter(move |layer| !self.has(*layer))
    }
}

impl Default for Layers {
    fn default() -> Self {
        Self::ALL
    }
}

impl std::fmt::Debug for Layers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("all layers")?;
        let missing: Vec<&str> = self.missing().map(Layer::name).collect();
        if missing.is_empty() {
            return Ok(());
        }
        write!(formatter, " but {}", missing.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_found_by_its_place_and_its_name() {
        for (index, layer) in Layer::all().enumerate() {
            assert_eq!(layer as usize, index);
            assert_eq!(Layer::named(layer.name()), Some(layer));
        }
        assert_eq!(Layer::named("landlock"), None);
    }

    #[test]
    fn what_needs_a_layer_goes_with_it_and_nothing_else_does() {
        let missing = |layers: Layers| layers.missing().collect::<Vec<_>>();
        assert!(missing(Layers::default()).is_empty());
        assert_eq!(
            missing(Layers::ALL.without(Layer::Seccomp)),
            [Layer::Seccomp]
        );
        assert_eq!(
            missing(Layers::ALL.without(Layer::Files)),
            [Layer::Files, Layer::Truncate, Layer::DeviceIoctl]
        );
        assert_eq!(
            missing(Layers::ALL.without(Layer::NoNewPrivileges)).len(),
            LAYERS.len() - 2,
            "account and limits stay"
        );
        assert!(Layer::all().all(|layer| !Layers::NONE.has(layer)));
    }

    #[test]
    fn an_older_kernel_lacks_what_came_later() {
        let two = Layers::ALL.of_landlock(2);
        assert!(two.has(Layer::Files) && two.has(Layer::Seccomp));
        assert!(!two.has(Layer::Truncate) && !two.has(Layer::NoSignals));
        assert!(!Layers::ALL.of_landlock(0).has(Layer::NoPtrace));
        assert_eq!(Layers::ALL.of_landlock(6), Layers::ALL);
    }
}
