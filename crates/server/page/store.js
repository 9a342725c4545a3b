// The store of conversations: IndexedDB, or the memory of the tab where the browser refuses that.
//
// Knows only the id of a conversation. A write that fails is an error, so that the user learns of a full disk.

const NAME = 'millstream';
const TABLE = 'conversations';

/** Opens the store: { persistent, all(), get(id), update(id, renew), remove(id) }. */
export async function openStore() {
  try {
    const database = await openDatabase();
    return new DatabaseStore(database);
  } catch {
    return new MemoryStore();
  }
}

/** Whether an error says that the browser's storage is full. */
export function isFull(error) {
  return error?.name === 'QuotaExceededError' || error?.inner?.name === 'QuotaExceededError';
}

function openDatabase() {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE, { keyPath: 'id' });
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
    opening.onblocked = () => reject(new Error('another tab holds an older store'));
  });
}

class DatabaseStore {
  constructor(database) {
    this.database = database;
    this.persistent = true;
    // A newer page in another tab may want to change the layout.
    database.onversionchange = () => database.close();
  }

  run(mode, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(TABLE, mode);
      const asked = work(transaction.objectStore(TABLE), reject);
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onabort = () => reject(transaction.error ?? asked.error ?? new Error('the browser aborted the write'));
    });
  }

  all() {
    return this.run('readonly', (table) => table.getAll());
  }

  get(id) {
    return this.run('readonly', (table) => table.get(id));
  }

  /** Stores `renew(kept)`, unless that is null, where `kept` is the stored value or undefined; no other tab can write in between. */
  update(id, renew) {
    return this.run('readwrite', (table, fail) => {
      const reading = table.get(id);
      reading.onsuccess = () => {
        try {
          const value = renew(reading.result);
          if (value !== null) table.put(value);
        } catch (error) {
          fail(error);
        }
      };
      return reading;
    });
  }

  remove(id) {
    return this.run('readwrite', (table) => table.delete(id));
  }
}

class MemoryStore {
  constructor() {
    this.values = new Map();
    this.persistent = false;
  }

  async all() {
    return [...this.values.values()];
  }

  async get(id) {
    return structuredClone(this.values.get(id));
  }

  async update(id, renew) {
    const value = renew(await this.get(id));
    if (value !== null) this.values.set(id, structuredClone(value));
  }

  async remove(id) {
    this.values.delete(id);
  }
}
