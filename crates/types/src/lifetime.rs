//! How long a sandbox is there without being asked for, and what becomes of it then.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What becomes of a sandbox whose time is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnTimeout {
    /// It is removed, with its disk.
    #[default]
    Kill,
    /// It is put on disk, memory included.
    Pause,
}

impl OnTimeout {
    /// Each.
    pub const ALL: [Self; 2] = [Self::Kill, Self::Pause];

    /// The word in the API and the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
        }
    }
}

impl fmt::Display for OnTimeout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for OnTimeout {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut all = Self::ALL.into_iter();
        all.find(|word| word.as_str() == text).ok_or(())
    }
}

/// A time after which something becomes of a sandbox: 1 second to 30 days, in whole ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifespan(Duration);

/// A time that is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose 1 second to 30 days ({} seconds)", Lifespan::MAX.0.as_secs())]
pub struct LifespanError;

impl Lifespan {
    /// Below it a sandbox would come and go more quickly than it can be put on disk.
    pub const MIN: Self = Self(Duration::from_secs(1));

    /// Beyond it nobody remembers what was asked for; without a timeout there is no bound.
    pub const MAX: Self = Self(Duration::from_secs(30 * 24 * 3600));

    /// So many ms.
    ///
    /// # Errors
    /// It is too short or too long.
    pub fn from_millis(millis: u64) -> Result<Self, LifespanError> {
        let span = Self(Duration::from_millis(millis));
        let fits = (Self::MIN..=Self::MAX).contains(&span);
        fits.then_some(span).ok_or(LifespanError)
    }

    /// So many seconds, which may be any number, or none.
    ///
    /// # Errors
    /// It is too short or too long.
    pub fn from_seconds(seconds: f64) -> Result<Self, LifespanError> {
        let span = Duration::try_from_secs_f64(seconds).map_err(|_| LifespanError)?;
        Self::from_millis(u64::try_from(span.as_millis()).map_err(|_| LifespanError)?)
    }

    /// As a duration.
    pub fn get(self) -> Duration {
        self.0
    }

    /// In ms.
    pub fn as_millis(self) -> u64 {
        // Of at most 30 days.
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifespan_is_a_second_to_thirty_days() {
        for right in [1.0, 1.5, 2_592_000.0] {
            let span = Lifespan::from_seconds(right).unwrap();
            assert_eq!(span.get().as_secs_f64(), right);
            assert_eq!(Lifespan::from_millis(span.as_millis()), Ok(span));
        }
        for wrong in [
            0.0,
            -0.0,
            0.999,
            -1.0,
            2_592_000.001,
            1e18,
            1e300,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MIN_POSITIVE,
        ] {
            assert_eq!(Lifespan::from_seconds(wrong), Err(LifespanError), "{wrong}");
        }
        assert_eq!(Lifespan::from_millis(u64::MAX), Err(LifespanError));
    }

    #[test]
    fn words_come_back() {
        for word in OnTimeout::ALL {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        assert_eq!("Pause".parse::<OnTimeout>(), Err(()));
        assert_eq!("".parse::<OnTimeout>(), Err(()));
    }
}
