// Where conversations are kept: IndexedDB, or the memory of the tab where the browser refuses that.
//
// Knows nothing of what a conversation is, beyond its id. Writes fail loudly: a full disk is told to the user.

const NAME = 'millstream';
const TABLE = 'conversations';

/** Opens the store: { persistent, all(), put(value), remove(id) }. */
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
      const asked = work(transaction.objectStore(TABLE));
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onabort = () => reject(transaction.error ?? asked.error ?? new Error('the browser gave up writing'));
    });
  }

  all() {
    return this.run('readonly', (table) => table.getAll());
  }

  put(value) {
    return this.run('readwrite', (table) => table.put(value));
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

  async put(value) {
    this.values.set(value.id, structuredClone(value));
  }

  async remove(id) {
    this.values.delete(id);
  }
}
