// Accessibility checks that run inside the page: names of controls, structure, contrast. They throw with a list of what is wrong.

/** Every control has a name, ids are unique, there is one first heading and the landmarks are there. */
export function assertAccessible() {
  const wrong = [];
  const named = (element) => {
    const by = element.getAttribute('aria-labelledby');
    const label = element.id && document.querySelector(`label[for="${CSS.escape(element.id)}"]`);
    return [element.getAttribute('aria-label'), by && by.split(' ').map((id) => document.getElementById(id)?.textContent).join(' '), label?.textContent, element.tagName === 'INPUT' || element.tagName === 'TEXTAREA' || element.tagName === 'SELECT' ? '' : element.textContent].some((text) => text && text.trim());
  };
  for (const element of document.querySelectorAll('button, a[href], input, textarea, select, summary, canvas, [role="meter"], progress, dialog, nav, aside, form[aria-label]')) {
    if (!named(element)) wrong.push(`no name: <${element.tagName.toLowerCase()} id="${element.id}" class="${element.className}">`);
  }
  for (const image of document.querySelectorAll('img')) if (!image.hasAttribute('alt')) wrong.push('an image without alternative text');
  const ids = [...document.querySelectorAll('[id]')].map((element) => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`two elements #${id}`);
  for (const reference of ['aria-labelledby', 'aria-describedby', 'aria-controls', 'for']) {
    for (const element of document.querySelectorAll(`[${reference}]`)) {
      for (const id of element.getAttribute(reference).split(' ')) if (!document.getElementById(id)) wrong.push(`${reference} names #${id}, which is not there`);
    }
  }
  if (document.querySelectorAll('h1').length !== 1) wrong.push('not exactly one h1');
  for (const landmark of ['main', 'nav', 'aside', 'header']) if (!document.querySelector(landmark)) wrong.push(`no <${landmark}>`);
  if (document.documentElement.lang !== 'en') wrong.push('no language');
  for (const element of document.querySelectorAll('[tabindex]')) if (element.tabIndex > 0) wrong.push('a positive tabindex');
  if (wrong.length) throw new Error(wrong.join('\n'));
}

/** Every visible text has a contrast of at least 4.5 : 1 to the plain colours behind it. */
export function assertContrast() {
  const parse = (text) => {
    const [red, green, blue, alpha = 1] = text.match(/[\d.]+/g).map(Number);
    return { red, green, blue, alpha };
  };
  const over = (front, back) => ({
    red: front.red * front.alpha + back.red * (1 - front.alpha), green: front.green * front.alpha + back.green * (1 - front.alpha), blue: front.blue * front.alpha + back.blue * (1 - front.alpha), alpha: 1,
  });
  const luminance = ({ red, green, blue }) => {
    const linear = [red, green, blue].map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((back, layer) => over(layer, back), { red: 255, green: 255, blue: 255, alpha: 1 });
  };
  const wrong = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({ visibilityProperty: true }) || element.closest('.offscreen, :disabled, noscript')) continue;
    const back = behind(element);
    const front = over(parse(getComputedStyle(element).color), back);
    const [light, dark] = [luminance(front), luminance(back)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) wrong.add(`${ratio.toFixed(2)} : 1 for <${element.tagName.toLowerCase()} class="${element.className}"> “${walker.currentNode.data.trim().slice(0, 30)}”`);
  }
  if (wrong.size) throw new Error([...wrong].join('\n'));
}
