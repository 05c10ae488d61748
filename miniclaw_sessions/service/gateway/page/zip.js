// Several files as one: a ZIP archive whose files are stored as they are.

const TABLE = Uint32Array.from({ length: 256 }, (_, value) => {
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** @param {Uint8Array} bytes */
function checksum(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) sum = (sum >>> 8) ^ TABLE[(sum ^ byte) & 255];
  return ~sum >>> 0;
}

/**
 * Numbers of two or four bytes, the lowest byte first.
 * @param {...[number, 2 | 4]} numbers
 */
function packed(...numbers) {
  return Uint8Array.from(numbers.flatMap(([value, size]) => Array.from({ length: size }, (_, place) => (value >>> (8 * place)) & 255)));
}

const UTF8_NAMES = 0x0800;
const VERSION = 20;
const FIRST_DAY = 0x21; // 1980-01-01, before which a ZIP knows no day

/** @param {{name: string, bytes: Uint8Array}[]} files whose names differ */
export function zipped(files) {
  /** @type {Uint8Array[]} */
  const parts = [];
  /** @type {Uint8Array[]} */
  const directory = [];
  let at = 0;
  const length = (/** @type {Uint8Array[]} */ some) => some.reduce((sum, one) => sum + one.length, 0);
  for (const { name, bytes } of files) {
    const named = new TextEncoder().encode(name);
    const facts = packed([VERSION, 2], [UTF8_NAMES, 2], [0, 2], [0, 2], [FIRST_DAY, 2], [checksum(bytes), 4], [bytes.length, 4], [bytes.length, 4], [named.length, 2], [0, 2]);
    directory.push(packed([0x02014b50, 4], [VERSION, 2]), facts, packed([0, 2], [0, 2], [0, 2], [0, 4], [at, 4]), named);
    const head = [packed([0x04034b50, 4]), facts, named];
    parts.push(...head, bytes);
    at += length(head) + bytes.length;
  }
  const count = files.length;
  const end = packed([0x06054b50, 4], [0, 2], [0, 2], [count, 2], [count, 2], [length(directory), 4], [at, 4], [0, 2]);
  return new Blob(/** @type {BlobPart[]} */ ([...parts, ...directory, end]), { type: "application/zip" });
}
