//! A host and a port.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A host name or address, and a port. An IPv6 address is written in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A text that is no host and port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not HOST:PORT{}", if *.bare_ipv6 { " (an IPv6 address goes in brackets)" } else { "" })]
pub struct AddressError {
    /// What was given.
    pub text: String,
    bare_ipv6: bool,
}

impl HostPort {
    /// A host, without brackets, and a port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Whether the host is an address that stands for all of a machine's own: nothing one can
    /// connect to from elsewhere.
    pub fn is_unspecified(&self) -> bool {
        self.host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_unspecified())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for HostPort {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError {
            text: text.to_owned(),
            bare_ipv6: text.matches(':').count() > 1 && !text.starts_with('['),
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let port = port.parse().map_err(|_| error())?;
        let host = match host.strip_prefix('[').map(|h| h.strip_suffix(']')) {
            Some(inner) => inner
                .filter(|h| h.parse::<std::net::Ipv6Addr>().is_ok())
                .ok_or_else(error)?,
            None if is_name(host) => host,
            None => return Err(error()),
        };
        Ok(Self::new(host, port))
    }
}

/// Letters, digits, dots, hyphens and underscores: a name or an IPv4 address.
fn is_name(host: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !host.is_empty() && host.len() <= 255 && host.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::HostPort;

    #[test]
    fn reads_what_it_writes() {
        for text in [
            "localhost:9092",
            "10.0.0.1:0",
            "[::1]:19092",
            "broker-1.test_net:65535",
        ] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_no_address() {
        for text in [
            "",
            ":",
            "localhost",
            ":9092",
            "localhost:",
            "localhost:65536",
            "localhost:-1",
            "::1:9092",
            "[::1:9092",
            "[x]:1",
            "[]:1",
            "a b:1",
            "http://x:1",
            "localhost:9092 ",
        ] {
            let error = text.parse::<HostPort>().unwrap_err();
            assert!(error.to_string().contains("is not HOST:PORT"), "{text}");
        }
        let error = "::1:9092".parse::<HostPort>().unwrap_err();
        assert!(error.to_string().contains("brackets"));
    }

    #[test]
    fn knows_the_addresses_nobody_can_connect_to() {
        for text in ["0.0.0.0:1", "[::]:1"] {
            assert!(text.parse::<HostPort>().unwrap().is_unspecified(), "{text}");
        }
        for text in ["127.0.0.1:1", "[::1]:1", "zero.test:1"] {
            assert!(
                !text.parse::<HostPort>().unwrap().is_unspecified(),
                "{text}"
            );
        }
    }
}
