//! A record as a line of text: every byte field in hexadecimal, null as `-`.

use std::error::Error;
use std::fmt::Write;

use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};

/// A record as the data set holds it.
pub struct Record {
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// Reads `timestamp TAB key TAB value TAB name=value,...`.
    pub fn parse(line: &str) -> Result<Self, Box<dyn Error>> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [timestamp, key, value, headers] = fields.as_slice() else {
            return Err(format!("{} fields in a line of 4", fields.len()).into());
        };
        let headers = headers
            .split(',')
            .filter(|header| !header.is_empty())
            .map(|header| {
                let (name, value) = header.split_once('=').ok_or("a header is NAME=VALUE")?;
                Ok((String::from_utf8(bytes(name)?)?, optional(value)?))
            })
            .collect::<Result<_, Box<dyn Error>>>()?;
        Ok(Self {
            timestamp: timestamp.parse()?,
            key: optional(key)?,
            value: optional(value)?,
            headers,
        })
    }

    /// Copies a consumed message.
    pub fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers
                .iter()
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect()
        });
        Self {
            timestamp: message.timestamp().to_millis().unwrap_or(-1),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers,
        }
    }

    pub fn line(&self) -> String {
        let headers: Vec<String> = self
            .headers
            .iter()
            .map(|(name, value)| format!("{}={}", hex(name.as_bytes()), text(value.as_deref())))
            .collect();
        format!(
            "{}\t{}\t{}\t{}",
            self.timestamp,
            text(self.key.as_deref()),
            text(self.value.as_deref()),
            headers.join(",")
        )
    }

    pub fn owned_headers(&self) -> OwnedHeaders {
        self.headers
            .iter()
            .fold(OwnedHeaders::new(), |headers, (name, value)| {
                headers.insert(Header {
                    key: name,
                    value: value.as_ref(),
                })
            })
    }
}

fn optional(text: &str) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
    if text == "-" {
        Ok(None)
    } else {
        bytes(text).map(Some)
    }
}

fn bytes(text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    (0..text.len())
        .step_by(2)
        .map(|at| {
            Ok(u8::from_str_radix(
                text.get(at..at + 2).ok_or("half a byte")?,
                16,
            )?)
        })
        .collect()
}

fn text(bytes: Option<&[u8]>) -> String {
    bytes.map_or_else(|| "-".to_owned(), hex)
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
