//! Topic names: a validated type, so that no path is ever made from an unchecked string.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest topic name, in bytes. Kafka's limit; with `.wal` and a suffix behind it a name still
/// fits the 255 bytes that file systems take.
pub const MAX_TOPIC_NAME_LEN: usize = 249;

/// A topic's name: 1 to 249 characters of `[a-zA-Z0-9._-]`, neither `.` nor `..`.
///
/// The rule is Kafka's (`org.apache.kafka.common.internals.Topic`). It leaves no way to write a
/// path separator, a parent directory or an empty component. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// Why a string is not a topic name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTopicName {
    /// The empty string.
    #[error("a topic name can't be empty")]
    Empty,
    /// `.` or `..`.
    #[error("a topic can't be called {0:?}")]
    Dots(&'static str),
    /// Longer than [`MAX_TOPIC_NAME_LEN`].
    #[error("a topic name has at most {MAX_TOPIC_NAME_LEN} characters, not {0}")]
    TooLong(usize),
    /// A character outside `[a-zA-Z0-9._-]`.
    #[error("a topic name can't hold {character:?} (at byte {position}); only [a-zA-Z0-9._-]")]
    Character {
        /// The first such character.
        character: char,
        /// Where it stands, in bytes.
        position: usize,
    },
}

impl TopicName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidTopicName`] says what is wrong with it.
    pub fn new(name: &str) -> Result<Self, InvalidTopicName> {
        match name {
            "" => return Err(InvalidTopicName::Empty),
            "." => return Err(InvalidTopicName::Dots(".")),
            ".." => return Err(InvalidTopicName::Dots("..")),
            _ => {}
        }
        if let Some((position, character)) = name
            .char_indices()
            .find(|(_, c)| !matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-'))
        {
            return Err(InvalidTopicName::Character {
                character,
                position,
            });
        }
        if name.len() > MAX_TOPIC_NAME_LEN {
            return Err(InvalidTopicName::TooLong(name.len()));
        }
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for TopicName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicName {
    type Err = InvalidTopicName;

    fn from_str(name: &str) -> Result<Self, InvalidTopicName> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_could_leave_the_data_directory_are_refused() {
        for name in [
            "../../../x",
            "..",
            ".",
            "a/b",
            "a\\b",
            "a\0b",
            "",
            "ä",
            "a b",
            "@stamp",
        ] {
            assert!(TopicName::new(name).is_err(), "{name:?}");
        }
        for name in ["-0", "a", "...", "A.b_c-9", ".hidden"] {
            assert_eq!(TopicName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn the_longest_name_has_249_characters() {
        assert!(TopicName::new(&"x".repeat(249)).is_ok());
        assert_eq!(
            TopicName::new(&"x".repeat(250)),
            Err(InvalidTopicName::TooLong(250))
        );
    }

    proptest! {
        #[test]
        fn any_accepted_name_is_one_plain_path_component(name in ".{0,300}") {
            if let Ok(topic) = TopicName::new(&name) {
                let mut parts = std::path::Path::new(topic.as_str()).components();
                prop_assert!(matches!(parts.next(), Some(std::path::Component::Normal(_))));
                prop_assert!(parts.next().is_none());
            }
        }
    }
}
