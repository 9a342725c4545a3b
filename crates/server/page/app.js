// Built from webui/src by webui/build.mjs: change it there.

// ---- sse.js
const EVENT_LENGTH_MAX=16 * 1024 * 1024;
class EventParser{
constructor(){
this.buffer='';
this.data=[];
this.length=0;
this.event='';
this.started=false;
this.afterReturn=false;
}
push(piece){
const events=[];
let text=piece;
if(!this.started&&text !==''){
this.started=true;
if(text.charCodeAt(0)===0xfeff)text=text.slice(1);
}
let from=0;
for(let at=0;at<text.length;at +=1){
const char=text.charCodeAt(at);
if(char !==10&&char !==13){
this.afterReturn=false;
continue;
}
if(char===10&&this.afterReturn){
this.afterReturn=false;
from=at + 1;
continue;
}
this.afterReturn=char===13;
this.line(this.buffer + text.slice(from,at),events);
this.buffer='';
from=at + 1;
}
this.buffer +=text.slice(from);
if(this.buffer.length + this.length>EVENT_LENGTH_MAX)throw new Error('an event of the stream is too long');
return events;
}
line(line,events){
if(line===''){
if(this.data.length)events.push({event:this.event||'message',data:this.data.join('\n')});
this.data=[];
this.length=0;
this.event='';
return;
}
const colon=line.indexOf(':');
if(colon===0)return;
const field=colon<0?line:line.slice(0,colon);
const value=colon<0?'':line.slice(line[colon + 1]===' '?colon + 2:colon + 1);
if(field==='data'){
this.data.push(value);
this.length +=value.length;
}else if(field==='event')this.event=value;
}
}
async function* readEvents(body){
const parser=new EventParser();
const decoder=new TextDecoder();
const reader=body.getReader();
try{
for(;;){
const{done,value}=await reader.read();
yield* parser.push(done?decoder.decode():decoder.decode(value,{stream:true}));
if(done)return;
}
}finally{
reader.cancel().catch(()=>{});
}
}

// ---- api.js
const KEY_NAME='millstream.key';
class ApiError extends Error{
constructor(status,{message,code='',type='',retryAfter=null}){
super(message);
this.status=status;
this.code=code||'';
this.type=type||'';
this.retryAfter=retryAfter;
}
}
function apiKey(){
return sessionStorage.getItem(KEY_NAME)??'';
}
function setApiKey(key){
sessionStorage.setItem(KEY_NAME,key);
}
async function request(path,{method='GET',body,headers={},signal,accept=[]}={}){
const sent={...headers};
if (apiKey()) sent.Authorization = `Bearer ${apiKey()}`;
if (body !== undefined) sent['Content-Type'] = 'application/json';
let response;
try{
response=await fetch(new URL(path,document.baseURI),{
method,headers:sent,signal,cache:'no-store',credentials:'same-origin',redirect:'error',
body:body===undefined?undefined:JSON.stringify(body),
});
}catch(error){
if(error.name==='AbortError')throw error;
throw new ApiError(0,{message:'The server cannot be reached.'});
}
if(response.ok||accept.includes(response.status))return response;
throw await errorOf(response);
}
async function requestJson(path,options){
const response=await request(path,options);
try{
return await response.json();
}catch(error){
if(error.name==='AbortError')throw error;
throw new ApiError(response.status,{message:'The server sent something that is not JSON.'});
}
}
async function* chat(body,signal){
const response = await request('v1/chat/completions', {
method: 'POST', signal, headers: { 'X-Prefill-Progress': '1', Accept: 'text/event-stream' },
body:{...body,stream:true,stream_options:{include_usage:true}},
});
try{
for await(const{event,data}of readEvents(response.body)){
if(data==='[DONE]')return;
const value=JSON.parse(data);
if(event==='prefill_progress')yield{kind:'progress',value};
else if(value.error)throw new ApiError(response.status,{...value.error,message:value.error.message??'The server reported an error.'});
else yield{kind:'chunk',value};
}
}catch(error){
if(error.name==='AbortError'||error instanceof ApiError)throw error;
throw new ApiError(0,{message:'The connection broke off in the middle of the answer.'});
}
throw new ApiError(0,{message:'The answer broke off: the server closed the connection.'});
}
async function errorOf(response){
const retryAfter=Number.parseInt(response.headers.get('Retry-After')??'',10);
let error={};
try{
const body=await response.json();
error=typeof body.error==='object'&&body.error !==null?body.error:{};
}catch{
}
return new ApiError(response.status,{
message: typeof error.message === 'string' ? error.message : `The server answered with status ${response.status}.`,
code:error.code,
type:error.type,
retryAfter:Number.isFinite(retryAfter)?Math.min(Math.max(retryAfter,1),120):null,
});
}

// ---- conversation.js
const FILE_FORMAT='millstream-conversations';
const FILE_VERSION=1;
const ROLES=new Set(['user','assistant','tool']);
const ROOT='';
const ID = /^[\w-]{1,64}$/;
function newId(){
const bytes=crypto.getRandomValues(new Uint8Array(9));
return Array.from(bytes,(byte)=>byte.toString(36).padStart(2,'0')).join('');
}
function newConversation(system=''){
const now=Date.now();
return{id:newId(),title:'',renamed:false,created:now,updated:now,system,messages:[],choice:{}};
}
function addMessage(conversation,parent,fields){
const message={id:newId(),parent:parent??null,created:Date.now(),content:'',...fields};
conversation.messages.push(message);
conversation.choice[message.parent??ROOT]=message.id;
conversation.updated=Date.now();
if(!conversation.renamed&&!conversation.title&&message.role==='user')conversation.title=titleOf(message.content);
return message;
}
function childrenOf(conversation,parent){
return conversation.messages.filter((message)=>message.parent===(parent??null));
}
function pathOf(conversation){
const children=new Map();
for(const message of conversation.messages){
const key=message.parent??ROOT;
if(!children.has(key))children.set(key,[]);
children.get(key).push(message);
}
const path=[];
for(let key=ROOT;children.has(key);){
const options=children.get(key);
const chosen=options.find((message)=>message.id===conversation.choice[key])??options.at(-1);
path.push(chosen);
key=chosen.id;
}
return path;
}
function versionsOf(conversation,message){
const all=childrenOf(conversation,message.parent);
return{all,index:all.indexOf(message)};
}
function choose(conversation,message){
conversation.choice[message.parent??ROOT]=message.id;
}
function chooseTo(conversation,message){
for(let at=message;at;at=conversation.messages.find((other)=>other.id===at.parent))choose(conversation,at);
}
function dropMessage(conversation,message){
conversation.messages=conversation.messages.filter((other)=>other !==message);
conversation.dropped=[...(conversation.dropped??[]),message.id];
}
function adoptMessages(conversation,other){
const dropped=new Set([...(conversation.dropped??[]),...(other.dropped??[])]);
if(dropped.size)conversation.dropped=[...dropped];
const known=new Map(conversation.messages.map((message)=>[message.id,message]));
for(const message of other.messages){
const mine=known.get(message.id);
if(!mine)conversation.messages.push(message);
else if(isFurther(message,mine)){
delete mine.pending;
Object.assign(mine,message);
}
}
conversation.messages=conversation.messages.filter((message)=>!dropped.has(message.id));
conversation.choice={...other.choice,...conversation.choice};
}
function adopt(conversation,newer){
const{title,renamed,updated,system,choice}=newer;
adoptMessages(conversation,newer);
Object.assign(conversation,{title,renamed,updated,system,choice:{...conversation.choice,...choice}});
}
function isFurther(message,mine){
const length=({content,reasoning='',calls=[]})=>content.length + reasoning.length + JSON.stringify(calls).length;
return Boolean(mine.pending)&&(!message.pending||length(message)>length(mine));
}
function titleOf(text){
const line=text.trim().split('\n').find((part)=>part.trim()!=='')??'';
const words = line.replace(/[#*`>_]/g, '').replace(/\s+/g, ' ').trim();
const characters=[...words];
if(characters.length<=60)return words||'Untitled';
const cut=characters.slice(0,60).join('');
const space=cut.lastIndexOf(' ');
return `${(space > 30 ? cut.slice(0, space) : cut).trimEnd()}…`;
}
function matches(conversation,query){
const words = query.toLowerCase().split(/\s+/).filter(Boolean);
if(words.length===0)return true;
const text=[conversation.title,...conversation.messages.map((message)=>message.content)].join('\n').toLowerCase();
return words.every((word)=>text.includes(word));
}
function requestMessages(conversation,until=null){
const out=conversation.system.trim()?[{role:'system',content:conversation.system}]:[];
for(const message of pathOf(conversation)){
if(until&&message.id===until)break;
if(message.role==='tool'){
out.push({role:'tool',tool_call_id:message.call,content:message.content});
}else if(message.role==='assistant'){
const sent={role:'assistant',content:message.content};
if(message.reasoning)sent.reasoning_content=message.reasoning;
if(message.calls?.length)sent.tool_calls=message.calls.map((call)=>({id:call.id,type:'function',function:{name:call.name,arguments:call.arguments}}));
out.push(sent);
}else{
out.push({role:'user',content:message.content});
}
}
return out;
}
function exportText(conversations){
return `${JSON.stringify({ format: FILE_FORMAT, version: FILE_VERSION, exported: new Date().toISOString(), conversations }, null, 1)}\n`;
}
function importText(text){
let file;
try{
file=JSON.parse(text);
}catch{
throw new Error('the file is not JSON');
}
if(!isObject(file)||file.format !==FILE_FORMAT)throw new Error('the file was not exported by Millstream');
if (file.version !== FILE_VERSION) throw new Error(`the file has version ${String(file.version)}, this page reads version ${FILE_VERSION}`);
if(!Array.isArray(file.conversations))throw new Error('the file has no list of conversations');
return file.conversations.map((conversation, index) => checkConversation(conversation, `conversation ${index + 1}`));
}
function mergeImported(existing,imported){
const known=new Map(existing.map((conversation)=>[conversation.id,canonical(conversation)]));
const added=[];
for(const conversation of imported){
const text=canonical(conversation);
if(known.get(conversation.id)===text)continue;
const fresh = known.has(conversation.id) ? { ...conversation, id: newId(), title: `${conversation.title} (imported)` } : conversation;
known.set(fresh.id,text);
added.push(fresh);
}
return added;
}
function canonical({messages,system,title}){
return JSON.stringify({messages,system,title},(_,value)=>(isObject(value)?Object.fromEntries(Object.entries(value).sort(([a],[b])=>(a<b?-1:1))):value));
}
function isObject(value){
return typeof value==='object'&&value !==null&&!Array.isArray(value);
}
function text(value,where,optional=false){
if(optional&&(value===undefined||value===null))return '';
if (typeof value !== 'string') throw new Error(`${where} is not a text`);
return value;
}
function time(value){
return Number.isFinite(value)&&value>=0&&value<8.64e15?value:Date.now();
}
function checkConversation(raw,where){
if (!isObject(raw)) throw new Error(`${where} is not an object`);
if (!Array.isArray(raw.messages)) throw new Error(`${where} has no list of messages`);
const ids=new Set();
const messages=raw.messages.map((message,index)=>{
const checked = checkMessage(message, `message ${index + 1} of ${where}`);
if (checked.parent !== null && !ids.has(checked.parent)) throw new Error(`message ${index + 1} of ${where} answers a message that is not there`);
if (ids.has(checked.id)) throw new Error(`message ${index + 1} of ${where} has the name of another`);
ids.add(checked.id);
return checked;
});
const choice={};
if(isObject(raw.choice)){
for(const [parent,child] of Object.entries(raw.choice))if((parent===ROOT||ids.has(parent))&&ids.has(child))choice[parent]=child;
}
return{
id: ID.test(text(raw.id, `the id of ${where}`)) ? raw.id : newId(),
title: text(raw.title, `the title of ${where}`, true).slice(0, 300),
renamed:raw.renamed===true,
created:time(raw.created),
updated:time(raw.updated),
system: text(raw.system, `the system prompt of ${where}`, true),
messages,
choice,
};
}
function checkMessage(raw,where){
if (!isObject(raw)) throw new Error(`${where} is not an object`);
if (!ROLES.has(raw.role)) throw new Error(`${where} has the unknown role ${JSON.stringify(raw.role) ?? 'none'}`);
const id = text(raw.id, `the id of ${where}`);
if (!ID.test(id)) throw new Error(`${where} has no usable id`);
const message={
id,
parent: raw.parent === null || raw.parent === undefined ? null : text(raw.parent, `the parent of ${where}`),
created:time(raw.created),
content: text(raw.content, `the content of ${where}`),
role:raw.role,
};
if (raw.reasoning) message.reasoning = text(raw.reasoning, `the reasoning of ${where}`);
if (raw.call) message.call = text(raw.call, `the call of ${where}`);
if(raw.stopped===true)message.stopped=true;
if(raw.pending===true)message.pending=true;
if(Array.isArray(raw.calls)){
message.calls=raw.calls.map((call)=>{
if (!isObject(call)) throw new Error(`a tool call of ${where} is not an object`);
return { id: text(call.id, `a tool call of ${where}`), name: text(call.name, `a tool call of ${where}`), arguments: text(call.arguments, `a tool call of ${where}`) };
});
}
if(isObject(raw.stats)){
message.stats={};
for(const [name,value] of Object.entries(raw.stats))if(Number.isFinite(value))message.stats[name]=value;
}
if (isObject(raw.error)) message.error = { message: text(raw.error.message, `the error of ${where}`), code: text(raw.error.code, `the error of ${where}`, true) };
if(Number.isFinite(raw.thoughtSeconds))message.thoughtSeconds=raw.thoughtSeconds;
if(typeof raw.finish==='string')message.finish=raw.finish;
return message;
}

// ---- inline.js
const SCHEMES=new Set(['http:','https:','mailto:']);
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const ENTITIES={
amp:'&',lt:'<',gt:'>',quot:'"',apos:"'",nbsp:'\u00a0',copy:'©',reg:'®',hellip:'…',
mdash:'—',ndash:'–',rarr:'→',larr:'←',times:'×',deg:'°',le:'≤',ge:'≥',ne:'≠',middot:'·',bull:'•',
};
const MARKS_MAX=2000;
const NESTING_MAX=24;
function node(tag,attrs={},children=[]){
return{tag,attrs,children};
}
function safeUrl(raw){
if(raw.length>2048)return null;
try{
const url=new URL(raw.trim());
return SCHEMES.has(url.protocol)?url.href:null;
}catch{
return null;
}
}
function parseInline(text,open=false,depth=0){
const parts=[];
const brackets=[];
const missing = new Set(); // lengths of backtick runs, and ends of formulas, that do not come further on
let plain='';
let marks=0;
let at=0;
const flush=()=>{
if(plain)parts.push(plain);
plain='';
};
const add=(item)=>{
flush();
parts.push(item);
};
while(at<text.length){
const char=text[at];
if(char==='\\'){
const math=mathAt(text,at,missing);
if(math){
add(node('span',{class:'math'},[math.source]));
at=math.end;
}else if(text[at + 1]==='\n'){
add(node('br'));
at +=2;
}else if(at + 1<text.length&&PUNCTUATION.test(text[at + 1])){
plain +=text[at + 1];
at +=2;
}else{
plain +=char;
at +=1;
}
}else if(char==='$'&&text[at + 1]==='$'){
const end=text.indexOf('$$',at + 2);
if(end>at + 2){
add(node('span',{class:'math'},[text.slice(at,end + 2)]));
at=end + 2;
}else{
plain +='$$';
at +=2;
}
} else if (char === '`') {
const length=runLength(text,at);
const end=missing.has(length)?-1:closingRun(text,at + length,length);
if(end>=0){
add(node('code',{},[codeText(text.slice(at + length,end))]));
at=end + length;
}else if(open&&length===1&&at + 1<text.length){
add(node('code',{},[codeText(text.slice(at + 1))]));
at=text.length;
}else{
missing.add(length);
plain +=text.slice(at,at + length);
at +=length;
}
}else if((char==='*'||char==='_'||char==='~')&&marks<MARKS_MAX){
const length=runLength(text,at);
add(markAt(text,at,length));
marks +=1;
at +=length;
}else if(char==='!'&&text[at + 1]==='['){
flush();
brackets.push({index:parts.length,active:true});
parts.push('![');
at +=2;
}else if(char==='['){
flush();
brackets.push({index:parts.length,active:true});
parts.push('[');
at +=1;
}else if(char===']'){
flush();
const opener=brackets.pop();
const target=opener&&opener.active&&depth + brackets.length<NESTING_MAX?targetAt(text,at + 1,open):null;
if(!target){
plain +=']';
at +=1;
continue;
}
const inside=parts.splice(opener.index).slice(1);
const children=resolveMarks(inside,false);
const url=safeUrl(target.url);
if(url){
parts.push(link(url,children.length?children:[url]));
for(const outer of brackets)outer.active=false;
}else{
parts.push(...children);
}
at=target.end;
}else if(char==='<'){
const tag = /^<(?:(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)|br\s*\/?)>/i.exec(text.slice(at, at + 2100));
const url=tag&&tag[1]?safeUrl(tag[1]):null;
if(tag&&!tag[1]){
add(node('br'));
at +=tag[0].length;
}else if(url){
add(link(url,[tag[1]]));
at +=tag[0].length;
}else{
plain +=char;
at +=1;
}
} else if (char === 'h' && text.startsWith('http', at) && !/\w/.test(text[at - 1] ?? ' ')) {
const address=bareAddress(text,at);
const url=address&&safeUrl(address);
if(url){
add(link(url,[address]));
at +=address.length;
}else{
plain +=char;
at +=1;
}
}else if(char==='&'){
const entity = /^&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,8}));/i.exec(text.slice(at, at + 12));
const decoded=entity&&decodeEntity(entity);
plain +=decoded||char;
at +=decoded?entity[0].length:1;
}else if(char==='\n'){
plain=plain.trimEnd();
add(node('br'));
at +=1;
while(text[at]===' ')at +=1;
}else{
plain +=char;
at +=1;
}
}
flush();
return resolveMarks(parts,open);
}
function plainText(nodes){
let out='';
for(const item of nodes){
if(typeof item==='string')out +=item;
else out +=item.tag==='br'?'\n':plainText(item.children);
}
return out;
}
function link(url,children){
return node('a',{href:url,rel:'noopener noreferrer nofollow',target:'_blank'},children);
}
function runLength(text,at){
let end=at;
while(text[end]===text[at])end +=1;
return end - at;
}
function closingRun(text,from,length){
let at = text.indexOf('`', from);
while(at>=0){
const run=runLength(text,at);
if(run===length)return at;
at = text.indexOf('`', at + run);
}
return -1;
}
function codeText(raw){
const text = raw.replace(/\n/g, ' ');
const padded=text.length>2&&text.startsWith(' ')&&text.endsWith(' ')&&text.trim()!=='';
return padded?text.slice(1,-1):text;
}
function mathAt(text,at,missing){
const close={'(':'\\)','[':'\\]'}[text[at + 1]];
if(!close||missing.has(close))return null;
const end=text.indexOf(close,at + 2);
if(end>=0)return{source:text.slice(at,end + 2),end:end + 2};
missing.add(close);
return null;
}
function decodeEntity([,decimal,hex,name]){
if(name)return Object.hasOwn(ENTITIES,name)?ENTITIES[name]:null;
const code=decimal?parseInt(decimal,10):parseInt(hex,16);
if(code===0||code>0x10ffff||(code>=0xd800&&code<=0xdfff))return '\ufffd';
return String.fromCodePoint(code);
}
function targetAt(text,at,open){
if(text[at] !=='(')return null;
const rest=text.slice(at,at + 2600);
const found = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()]|\([^\s()]*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(rest);
if(found)return{url:found[1]??found[2],end:at + found[0].length};
if (open && /^\([^\s()]*$/.test(rest)) return { url: '', end: text.length };
return null;
}
function bareAddress(text,at){
const found = /^https?:\/\/[^\s<>"'`*|\\]+/i.exec(text.slice(at, at + 2050));
if(!found)return null;
let address=found[0];
for(;;){
const last=address.at(-1);
const unbalanced=last===')'&&address.split(')').length>address.split('(').length;
if (!unbalanced && !/[.,;:!?\]_~]/.test(last)) return address;
address=address.slice(0,-1);
}
}
function markAt(text,at,length){
const before=text[at - 1]??' ';
const after=text[at + length]??' ';
const spaceBefore = /\s/.test(before);
const spaceAfter = /\s/.test(after);
const pointBefore = /[\p{P}\p{S}]/u.test(before);
const pointAfter = /[\p{P}\p{S}]/u.test(after);
const left=!spaceAfter&&(!pointAfter||spaceBefore||pointBefore);
const right=!spaceBefore&&(!pointBefore||spaceAfter||pointAfter);
const char=text[at];
const word=char==='_';
return{
mark:char,
count:length,
original:length,
opens:word?left&&(!right||pointBefore):left,
closes:word?right&&(!left||pointAfter):right,
};
}
function resolveMarks(parts,open){
const out=[];
const openers=[];
const wrap=(position,tag)=>{
const children=settle(out.splice(position + 1));
while(openers.length&&openers.at(-1)>position)openers.pop();
return node(tag,{},children);
};
for(const part of parts){
if(part.mark===undefined){
out.push(part);
continue;
}
const closer={...part};
while(closer.closes&&closer.count>0){
const index=openers.findLastIndex((position)=>pairs(out[position],closer));
if(index<0)break;
const position=openers[index];
const opener=out[position];
const used=closer.mark==='~'?closer.count:Math.min(2,opener.count,closer.count);
const wrapped=wrap(position,closer.mark==='~'?'del':used===2?'strong':'em');
opener.count -=used;
closer.count -=used;
if(opener.count===0){
out.pop();
openers.pop();
}
out.push(wrapped);
}
if(closer.count>0){
if(closer.opens)openers.push(out.length);
out.push(closer);
}
}
while(open&&openers.length){
const position=openers.at(-1);
const opener=out[position];
if(opener.count>3||position===out.length - 1||opener.mark==='~'){
openers.pop();
continue;
}
const wrapped=wrap(position,opener.count>=2?'strong':'em');
out.pop();
openers.pop();
out.push(wrapped);
}
return settle(out);
}
function pairs(opener,closer){
if(opener.mark !==closer.mark)return false;
if(closer.mark==='~')return opener.count===closer.count&&closer.count<=2;
const both=(opener.closes||closer.opens)&&(opener.original + closer.original)% 3===0;
return !both||(opener.original % 3===0&&closer.original % 3===0);
}
function settle(parts){
const out=[];
for(const part of parts){
const item=part.mark===undefined?part:part.mark.repeat(part.count);
if(typeof item==='string'&&typeof out.at(-1)==='string')out[out.length - 1] +=item;
else if(item !=='')out.push(item);
}
return out;
}

// ---- dom.js
const SVG = 'http://www.w3.org/2000/svg';
const ATTRIBUTES=new Set(['class','href','rel','target','start','scope','type','role','tabindex','dir','data-action','aria-label']);
function make(tag,attrs={},...children){
const element=document.createElement(tag);
for(const [name,value] of Object.entries(attrs)){
if(value===null||value===undefined||value===false)continue;
if(name.startsWith('on'))element.addEventListener(name.slice(2),value);
else element.setAttribute(name,value===true?'':String(value));
}
element.append(...children.flat().filter((child)=>child !==null&&child !==undefined&&child !==false));
return element;
}
function byId(id){
const element=document.getElementById(id);
if (!element) throw new Error(`the page has no element #${id}`);
return element;
}
const ICONS={
plus:'M12 5v14M5 12h14',
menu:'M4 7h16M4 12h16M4 17h16',
close:'M6 6l12 12M18 6L6 18',
send:'M12 19V5M6 11l6-6 6 6',
stop:'M8 8h8v8H8z',
copy:'M9 9h10v10H9zM5 15V5h10',
check:'M5 12.5l4.5 4.5L19 7.5',
edit:'M4 20l1-4L16.5 4.5l3 3L8 19zM14 7l3 3',
again:'M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4',
trash:'M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12M10.5 10.5v5M13.5 10.5v5',
download:'M12 4v11M7 11l5 5 5-5M5 20h14',
upload:'M12 16V5M7 9l5-5 5 5M5 20h14',
left:'M14 6l-6 6 6 6',
right:'M10 6l6 6-6 6',
down:'M12 5v14M6 13l6 6 6-6',
sliders:'M4 7h9M19 7h1M4 17h3M13 17h7M16 4.5v5M10 14.5v5',
sun:'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2.5v2.5M12 19v2.5M2.5 12H5M19 12h2.5M5.3 5.3L7 7M17 17l1.7 1.7M18.7 5.3L17 7M7 17l-1.7 1.7',
moon:'M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z',
half:'M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16',
keyboard:'M3.5 7h17v10h-17zM7 10.5h.01M10.3 10.5h.01M13.7 10.5h.01M17 10.5h.01M8 14h8',
pulse:'M3 12h4l3-7 4 14 3-7h4',
expand:'M9 4H4v5M15 4h5v5M9 20H4v-5M15 20h5v-5',
search:'M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12M15.5 15.5L20 20',
tool:'M14.5 6.5a4 4 0 0 0-5 5L4 17l3 3 5.5-5.5a4 4 0 0 0 5-5L15 12l-3-3z',
};
function icon(name){
const svg=document.createElementNS(SVG,'svg');
svg.setAttribute('viewBox','0 0 24 24');
svg.setAttribute('aria-hidden','true');
svg.setAttribute('class','icon');
const path=document.createElementNS(SVG,'path');
path.setAttribute('d',ICONS[name]);
svg.append(path);
return svg;
}
function iconButton(name,label,onclick,attrs={}){
return make('button',{type:'button',class:'icon-button','aria-label':label,title:label,onclick,...attrs},icon(name));
}
function composing(event){
return event.isComposing||event.keyCode===229;
}
function renderNode(item){
if(typeof item==='string')return document.createTextNode(item);
const element=document.createElement(item.tag);
for(const [name,value] of Object.entries(item.attrs))setAttribute(element,name,value);
element.append(...item.children.map(renderNode));
return element;
}
function patchNodes(parent,before,after,from=0){
const shared=Math.min(before.length,after.length);
for(let index=from;index<shared;index +=1)patchNode(parent.childNodes[index],before[index],after[index]);
for(let index=before.length - 1;index>=shared;index -=1)parent.childNodes[index].remove();
if(after.length>shared)parent.append(...after.slice(Math.max(shared,from)).map(renderNode));
}
function patchNode(dom,before,after){
if(before===after)return;
if(typeof before==='string'&&typeof after==='string'){
if(after.startsWith(before))dom.appendData(after.slice(before.length));
else dom.data=after;
return;
}
if(typeof before==='string'||typeof after==='string'||before.tag !==after.tag){
dom.replaceWith(renderNode(after));
return;
}
for(const name of Object.keys(before.attrs))if(!(name in after.attrs))dom.removeAttribute(name);
for(const [name,value] of Object.entries(after.attrs))if(before.attrs[name] !==value)setAttribute(dom,name,value);
patchNodes(dom,before.children,after.children);
}
function setAttribute(element,name,value){
if(!ATTRIBUTES.has(name))return;
if(name==='href'&&!safeUrl(value))return;
element.setAttribute(name,value);
}
function themeColour(property){
const probe=make('i',{hidden:true});
probe.style.color = `var(${property})`;
document.body.append(probe);
const colour=getComputedStyle(probe).color;
probe.remove();
return colour;
}
async function copyText(text){
try{
await navigator.clipboard.writeText(text);
return true;
}catch{
const focused=document.activeElement;
const area=make('textarea',{class:'offscreen','aria-hidden':'true'});
area.value=text;
document.body.append(area);
area.select();
const copied=document.execCommand('copy');
area.remove();
focused?.focus();
return copied;
}
}
function download(name,text){
const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
make('a',{href:url,download:name}).click();
setTimeout(()=>URL.revokeObjectURL(url),10_000);
}

// ---- format.js
const count=new Intl.NumberFormat('en-US');
const UNITS=['B','kB','MB','GB','TB','PB'];
function formatCount(value){
return count.format(Math.round(value));
}
function formatBytes(bytes){
if(!Number.isFinite(bytes))return '–';
let value=Math.max(0,bytes);
let unit=0;
while(value>=999.5&&unit<UNITS.length - 1){
value /= 1000;
unit +=1;
}
return `${unit === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}
function formatRate(value){
if(!Number.isFinite(value))return '–';
return value>=99.95?formatCount(value):value.toFixed(1);
}
function formatShare(share){
const percent=share * 100;
return `${percent > 0 && percent < 9.95 ? percent.toFixed(1) : Math.round(percent)} %`;
}
function formatDrafts({acceptance,gain}){
const right = `${formatShare(acceptance)} accepted`;
return gain >= 1.05 ? `${right}, ${gain.toFixed(1)}× faster` : right;
}
function formatSeconds(seconds){
if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}
function plural(value, one, many = `${one}s`) {
return `${formatCount(value)} ${value === 1 ? one : many}`;
}
function dayGroup(time,now=Date.now()){
const midnight=new Date(now).setHours(0,0,0,0);
const day=86_400_000;
if(time>=midnight)return 'Today';
if(time>=midnight - day)return 'Yesterday';
if(time>=midnight - 7 * day)return 'Last seven days';
if(time>=midnight - 30 * day)return 'Last thirty days';
return 'Older';
}

// ---- generation.js
const BUSY_RETRIES_MAX=20;
class Generation{
constructor(conversation,message,body,watch){
this.conversation=conversation;
this.message=message;
this.body=body;
this.watch=watch;
this.abort=new AbortController();
this.phase='waiting';
this.progress=null;
this.retryAt=0;
this.started=performance.now();
this.firstAt=null;
this.lastAt=null;
this.pieces=0;
this.thinkingSince=null;
}
stop(){
this.abort.abort();
}
async run(){
const{message}=this;
try{
for(let attempt=0;;attempt +=1){
try{
await this.read();
break;
}catch(error){
if(!(error instanceof ApiError)||error.status !==503||this.firstAt !==null||attempt>=BUSY_RETRIES_MAX)throw error;
await this.waitBusy(error.retryAfter??5);
}
}
}catch(error){
if(error.name==='AbortError')message.stopped=true;
else message.error = { message: error.message, code: error.code || (error.status ? `status_${error.status}` : 'unreachable') };
this.failure=error;
}
this.endThinking();
delete message.pending;
this.measure();
this.enter('done');
this.watch(this,'done');
}
async read(){
this.enter('waiting');
this.started=performance.now();
for await(const{kind,value}of chat(this.body,this.abort.signal)){
if(kind==='progress'){
this.progress=value;
if(this.firstAt===null)this.enter('prefill');
continue;
}
this.take(value);
}
}
take(chunk){
const{message}=this;
if(chunk.usage)this.usage=chunk.usage;
if(chunk.timings)this.timings=chunk.timings;
const choice=chunk.choices?.[0];
if(!choice)return;
const delta=choice.delta??{};
if(typeof delta.reasoning_content==='string'&&delta.reasoning_content !==''){
this.count();
this.thinkingSince??=performance.now();
message.reasoning=(message.reasoning??'')+ delta.reasoning_content;
this.enter('thinking');
this.watch(this,'reasoning');
}
if(typeof delta.content==='string'&&delta.content !==''){
this.count();
this.endThinking();
message.content +=delta.content;
this.enter('answering');
this.watch(this,'content');
}
if(Array.isArray(delta.tool_calls)){
this.count();
this.endThinking();
this.takeCalls(delta.tool_calls);
this.enter('answering');
this.watch(this,'calls');
}
if(choice.finish_reason)message.finish=choice.finish_reason;
}
takeCalls(deltas){
const calls=(this.message.calls??=[]);
for(const delta of deltas){
const index=Number.isInteger(delta.index)&&delta.index>=0&&delta.index<128?delta.index:calls.length;
while(calls.length<=index)calls.push({id:'',name:'',arguments:''});
const call=calls[index];
if(delta.id)call.id=String(delta.id);
if(delta.function?.name)call.name +=String(delta.function.name);
if(delta.function?.arguments)call.arguments +=String(delta.function.arguments);
}
}
count(){
this.lastAt=performance.now();
this.firstAt??=this.lastAt;
this.pieces +=1;
}
endThinking(){
if(this.thinkingSince===null)return;
this.message.thoughtSeconds = (performance.now() - this.thinkingSince) / 1000;
this.thinkingSince=null;
}
waitBusy(seconds){
this.retryAt=Date.now()+ seconds * 1000;
this.enter('busy');
return new Promise((resolve,reject)=>{
const end=()=>{
clearTimeout(timer);
reject(new DOMException('stopped','AbortError'));
};
const timer=setTimeout(()=>{
this.abort.signal.removeEventListener('abort',end);
resolve();
},seconds * 1000);
this.abort.signal.addEventListener('abort',end,{once:true});
});
}
measure(){
const stats={};
const{usage,timings}=this;
const put=(name,value)=>{
if(Number.isFinite(value))stats[name]=value;
};
if (this.firstAt !== null) put('firstSeconds', (this.firstAt - this.started) / 1000);
put('tokens',usage?.completion_tokens);
put('promptTokens',usage?.prompt_tokens);
put('cachedTokens',usage?.prompt_tokens_details?.cached_tokens);
put('rate',timings?.decode_tok_s);
put('prefillRate',timings?.prefill_tok_s);
const seconds = this.firstAt === null ? 0 : (this.lastAt - this.firstAt) / 1000;
if (stats.rate === undefined && seconds > 0.05 && stats.tokens > 1) put('rate', (stats.tokens - 1) / seconds);
if(stats.tokens===undefined&&this.pieces)put('pieces',this.pieces);
this.message.stats=stats;
}
enter(phase){
const changed=this.phase !==phase;
this.phase=phase;
if(changed||phase==='prefill')this.watch(this,'state');
}
}

// ---- highlight.js
const C_LIKE = { line: '\\/\\/', block: ['\\/\\*', '\\*\\/'], strings: `"'` };
const LANGUAGES={
javascript:{
...C_LIKE,template:true,
words:'async await break case catch class const continue debugger default delete do else export extends finally for from function if import in instanceof let new of return static super switch this throw try typeof var void while with yield interface type enum implements private public protected readonly as satisfies declare namespace abstract keyof',
values:'true false null undefined NaN Infinity',
},
python:{
line: '#', strings: `"'`, triple: true,
words:'and as assert async await break class continue def del elif else except finally for from global if import in is lambda match case nonlocal not or pass raise return try while with yield',
values:'True False None self',
},
rust:{
...C_LIKE,strings:'"',lifetimes:true,
words:'as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub ref return static struct super trait type unsafe use where while',
values:'true false self Self None Some Ok Err',
},
go:{
...C_LIKE,template:true,
words:'break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var',
values:'true false nil iota',
},
c:{
...C_LIKE,preprocessor:true,
words:'abstract alignas auto bool break case catch char class concept const constexpr continue decltype default delete do double else enum explicit export extends extern final finally float for foreach friend fun func get goto guard if implements import in inline instanceof int interface internal is let long mutable namespace new noexcept object operator out override package private protected public readonly record ref return sealed short signed sizeof static struct super switch synchronized template this throw throws try typedef typename union unsigned using val var virtual void volatile when where while yield string async await',
values:'true false null nullptr nil NULL',
},
shell:{
line: '(?<![^\\s])#', strings: `"'`, variables: true,
words:'if then else elif fi for in do done while until case esac function return local export source alias set unset echo cd exit sudo',
values:'true false',
},
json:{strings:'"',keys:true,words:'',values:'true false null'},
sql:{
line: '--', block: ['\\/\\*', '\\*\\/'], strings: `"'`, insensitive: true,
words:'add all alter and as asc between by case check column constraint create cross default delete desc distinct drop else end exists foreign from full group having if in index inner insert into is join key left like limit not null offset on or order outer primary references right select set table then union unique update using values view when where with',
values:'true false',
},
yaml: { line: '(?<![^\\s])#', strings: `"'`, keys: true, words: '', values: 'true false null yes no' },
ruby:{
line: '#', strings: `"'`,
words:'alias and begin break case class def defined do else elsif end ensure for if in module next not or redo rescue retry return self super then undef unless until when while yield require attr_accessor puts',
values:'true false nil',
},
css: { block: ['\\/\\*', '\\*\\/'], strings: `"'`, keys: true, words: '', values: '' },
markup: { block: ['<!--', '-->'], strings: `"'`, tags: true, words: '', values: '' },
};
const ALIASES={
js:'javascript',jsx:'javascript',ts:'javascript',tsx:'javascript',typescript:'javascript',mjs:'javascript',
py:'python',python3:'python',rs:'rust',golang:'go',
'c++':'c',cpp:'c',h:'c',hpp:'c',java:'c',kotlin:'c',kt:'c',swift:'c','c#':'c',csharp:'c',cs:'c',dart:'c',scala:'c',php:'c',zig:'c',
bash:'shell',sh:'shell',zsh:'shell',console:'shell',dockerfile:'shell',makefile:'shell',powershell:'shell',
json5:'json',jsonc:'json',jsonl:'json',yml:'yaml',toml:'yaml',ini:'yaml',rb:'ruby',scss:'css',less:'css',
html:'markup',xml:'markup',svg:'markup',vue:'markup',postgresql:'sql',mysql:'sql',sqlite:'sql',
};
const LENGTH_MAX=60_000;
const compiled=new Map();
function highlight(text,language){
if(text==='')return [];
if(text.length>LENGTH_MAX)return [['',text]];
if(language==='diff'||language==='patch')return diff(text);
const name=Object.hasOwn(LANGUAGES,language)?language:Object.hasOwn(ALIASES,language)?ALIASES[language]:null;
if(!name)return [['',text]];
if(!compiled.has(name))compiled.set(name,compile(LANGUAGES[name]));
const{pattern,kindOf}=compiled.get(name);
const out=[];
let from=0;
for(const found of text.matchAll(pattern)){
const kind=kindOf(found.groups);
if(!kind)continue;
if(found.index>from)out.push(['',text.slice(from,found.index)]);
out.push([kind,found[0]]);
from=found.index + found[0].length;
}
if(from<text.length)out.push(['',text.slice(from)]);
return out;
}
function diff(text){
return text.split(/(?<=\n)/).map((line) => [line[0] === '+' ? 'string' : line[0] === '-' ? 'removed' : line[0] === '@' ? 'keyword' : '', line]);
}
function compile(language){
const words=new Set(language.words.split(' '));
const values=new Set(language.values.split(' '));
const parts=[];
const comments=[];
if (language.block) comments.push(`${language.block[0]}[\\s\\S]*?(?:${language.block[1]}|$)`);
if (language.line) comments.push(`${language.line}[^\\n]*`);
if (comments.length) parts.push(`(?<comment>${comments.join('|')})`);
if(language.preprocessor)parts.push('(?<meta>(?<=^|\\n)[ \\t]*#[a-z]+[^\\n]*)');
if (language.tags) parts.push('(?<keyword><\\/?[A-Za-z][\\w:-]*|\\/?>)|(?<name>[A-Za-z][\\w:-]*(?==))');
if(language.keys)parts.push('(?<name>"(?:[^"\\\\\\n]|\\\\.)*"(?=\\s*:)|(?<=^|[\\n{;])[ \\t]*(?:- )*[\\w.@#-]+(?=\\s*[:=] ?))');
const strings=[];
if(language.triple)strings.push('"""[\\s\\S]*?(?:"""|$)',"'''[\\s\\S]*?(?:'''|$)");
if (language.template) strings.push('`(?:[^`\\\\]|\\\\[\\s\\S])*(?:`|$)');
for (const quote of language.strings) strings.push(`${quote}(?:[^${quote}\\\\\\n]|\\\\.)*(?:${quote}|(?=\\n)|$)`);
if(language.lifetimes)strings.push("'(?:[^'\\\\\\n]|\\\\[^\\n]{1,8})'");
parts.push(`(?<string>${strings.join('|')})`);
if(language.variables)parts.push('(?<name>\\$\\{?[\\w@#?*!-]+\\}?|(?<=\\s)--?[A-Za-z][\\w-]*)');
parts.push('(?<number>(?<![\\w.])(?:0[xX][\\da-fA-F_]+|0[bB][01_]+|\\d[\\d_]*(?:\\.\\d[\\d_]*)?(?:[eE][+-]?\\d+)?)\\w*)');
parts.push('(?<call>[A-Za-z_]\\w*(?=\\s*!?\\())|(?<word>[A-Za-z_]\\w*)');
const kindOf=(groups)=>{
for(const kind of ['comment','meta','keyword','string','name','number'])if(groups[kind] !==undefined)return kind;
const found=groups.call??groups.word;
const word=language.insensitive?found.toLowerCase():found;
if(words.has(word))return 'keyword';
if(values.has(word))return 'number';
if(groups.call !==undefined)return 'call';
return /^[A-Z][a-z]/.test(word) && !language.insensitive && !language.tags && !language.keys ? 'type' : '';
};
return{pattern:new RegExp(parts.join('|'),'g'),kindOf};
}

// ---- markdown.js
const FENCE = /^(\s*)(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)(.*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+•]|\d{1,9}[.)])( +|$)(.*)$/;
const DELIMITER = /^ *\|?(?: *:?-+:? *\|)* *:?-+:? *\|? *$/;
const DEPTH_MAX=12;
function parseMarkdown(text){
return parseBlocks(clean(text).split('\n'),0,false).map((block)=>block.node);
}
class MarkdownStream{
constructor(){
this.settled=[];
this.tail='';
this.parsed=0;
this.heldReturn=false;
}
push(piece){
let text=this.heldReturn?'\r' + piece:piece;
this.heldReturn=text.endsWith('\r');
if(this.heldReturn)text=text.slice(0,-1);
this.tail +=clean(text);
this.settle();
}
rest(open){
return parseBlocks(this.tail.split('\n'),0,open).map((block)=>block.node);
}
blocks(open=false){
return [...this.settled,...this.rest(open)];
}
settle(){
const end=this.tail.lastIndexOf('\n');
if(end<this.parsed)return;
this.parsed=end + 1;
const lines=this.tail.slice(0,end).split('\n');
const blocks=parseBlocks(lines,0,false);
if(blocks.length<2)return;
const last=blocks.at(-1).line;
for(const block of blocks.slice(0,-1))this.settled.push(block.node);
let offset=0;
for(let line=0;line<last;line +=1)offset +=lines[line].length + 1;
this.tail=this.tail.slice(offset);
this.parsed -=offset;
}
}
function clean(text){
return text.replace(/\r\n?/g, '\n').replace(/\0/g, '\ufffd');
}
function parseBlocks(raw,depth,open){
const lines = raw.map((line) => line.replace(/^[ \t]+/, (space) => space.replace(/\t/g, '    ')));
const blocks=[];
let at=0;
while(at<lines.length){
if(lines[at].trim()===''){
at +=1;
continue;
}
const read=fence(raw,lines,at)??heading(lines,at,open)??rule(lines,at)
??(depth<DEPTH_MAX?quote(lines,at,depth,open)??list(lines,at,depth,open):null)
??table(lines,at,open)??paragraph(lines,at,depth,open);
if(depth===0&&read.node.tag !=='figure')read.node.attrs.dir='auto';
blocks.push({node:read.node,line:at});
at=read.next;
}
return blocks;
}
function fence(raw,lines,at){
const opening=fenceAt(lines[at]);
if(!opening)return null;
const body=[];
let next=at + 1;
let closed=false;
for(;next<lines.length&&!closed;next +=1){
const closing=FENCE.exec(lines[next]);
closed=closing !==null&&closing[2][0]===opening.mark[0]&&closing[2].length>=opening.mark.length&&closing[3].trim()==='';
if(!closed)body.push(dedent(raw[next],opening.indent));
}
if(!closed&&body.at(-1)==='')body.pop();
return{node:codeBlock(opening.language,body.join('\n')),next};
}
function fenceAt(line){
const found=FENCE.exec(line);
if (!found || (found[2][0] === '`' && found[3].includes('`'))) return null;
const language = /^[\w+#.-]{1,24}/.exec(found[3].trim().replace(/^\{?\.?/, ''));
return{indent:found[1].length,mark:found[2],language:language?language[0].toLowerCase():''};
}
function dedent(line,count){
let at=0;
while(at<count&&line[at]===' ')at +=1;
return line.slice(at);
}
function codeBlock(language,code){
const children = highlight(code, language).map(([kind, text]) => (kind ? node('span', { class: `t-${kind}` }, [text]) : text));
return node('figure',{class:'code'},[
node('figcaption',{},[
node('span',{class:'language'},[language||'text']),
node('button',{type:'button',class:'copy','data-action':'copy-code'},['Copy']),
]),
node('pre',{tabindex:'0'},[node('code',{},children)]),
]);
}
function heading(lines,at,open){
const found=HEADING.exec(lines[at]);
if(!found)return null;
const tag = `h${Math.min(6, found[1].length + 2)}`;
const text=found[2].trim();
let end=text.length;
while(text[end - 1]==='#')end -=1;
const bare=text.slice(0,end);
const title = bare === '' || /[ \t]$/.test(bare) ? bare.trim() : text;
return { node: node(tag, { class: `level-${found[1].length}` }, parseInline(title, open && at === lines.length - 1)), next: at + 1 };
}
function rule(lines,at){
return RULE.test(lines[at])?{node:node('hr'),next:at + 1}:null;
}
function quote(lines,at,depth,open){
if(!QUOTE.test(lines[at]))return null;
const inside=[];
let next=at;
for(;next<lines.length;next +=1){
const line=lines[next];
if(QUOTE.test(line))inside.push(line.replace(QUOTE,''));
else if(line.trim()!==''&&inside.at(-1).trim()!==''&&!startsBlock(line))inside.push(line);
else break;
}
const children=parseBlocks(inside,depth + 1,open&&next===lines.length).map((block)=>block.node);
return{node:node('blockquote',{},children),next};
}
function itemAt(line){
if(RULE.test(line))return null;
const found=ITEM.exec(line);
if(!found)return null;
const [,indent,marker,space,text]=found;
const gap=space.length===0||space.length>4?1:space.length;
return { indent: indent.length, marker, ordered: /\d/.test(marker), content: indent.length + marker.length + gap, text };
}
function list(lines,at,depth,open){
const first=itemAt(lines[at]);
if(!first)return null;
const items=[];
let next=at;
while(next<lines.length){
const item=itemAt(lines[next]);
if(!item||item.ordered !==first.ordered||item.indent>=first.content)break;
const inside=[item.text];
next +=1;
next=itemLines(lines,next,item,inside);
items.push({inside,last:next>=lines.length});
let ahead=next;
while(ahead<lines.length&&lines[ahead].trim()==='')ahead +=1;
if(ahead<lines.length&&itemAt(lines[ahead]))next=ahead;
}
const attrs=first.ordered&&parseInt(first.marker,10)!==1?{start:String(parseInt(first.marker,10))}:{};
const children=items.map(({inside,last})=>listItem(inside,depth,open&&last));
return{node:node(first.ordered?'ol':'ul',attrs,children),next};
}
function itemLines(lines,from,item,inside){
const nested=Math.min(item.content,item.indent + 2);
let next=from;
while(next<lines.length){
const line=lines[next];
if(line.trim()===''){
let ahead=next;
while(ahead<lines.length&&lines[ahead].trim()==='')ahead +=1;
if(ahead===lines.length||indentOf(lines[ahead])<nested)return next;
for(;next<ahead;next +=1)inside.push('');
continue;
}
const indent=indentOf(line);
if(indent>=nested)inside.push(line.slice(Math.min(indent,item.content)));
else if(inside.at(-1).trim()!==''&&!startsBlock(line)&&!itemAt(line))inside.push(line);
else return next;
next +=1;
}
return next;
}
function indentOf(line){
return line.length - line.trimStart().length;
}
function listItem(inside,depth,open){
const task = /^\[([ xX])\]\s+/.exec(inside[0]);
const lines=task?[inside[0].slice(task[0].length),...inside.slice(1)]:inside;
const blocks=parseBlocks(lines,depth + 1,open).map((block)=>block.node);
const lone=blocks.filter((block)=>block.tag==='p').length===1;
const children=blocks.flatMap((block)=>(lone&&block.tag==='p'?block.children:[block]));
if(!task)return node('li',{},children);
const done=task[1] !==' ';
return node('li',{class:'task'},[node('span',{class:'box',role:'img','aria-label':done?'done':'to do'},[done?'☑':'☐']),' ',...children]);
}
function cells(line){
const out=[];
let cell='';
let code=false;
const text = line.trim().replace(/^\|/, '');
for(let at=0;at<text.length;at +=1){
if(text[at]==='\\'&&text[at + 1]==='|'){
cell +='|';
at +=1;
}else if(text[at]==='|'&&!code){
out.push(cell.trim());
cell='';
}else{
if (text[at] === '`') code = !code && text.indexOf('`', at + 1) > 0;
cell +=text[at];
}
}
if(cell.trim()!==''||out.length===0)out.push(cell.trim());
return out;
}
function tableAt(lines,at){
if(!lines[at].includes('|')||at + 1>=lines.length)return false;
const below=lines[at + 1];
return below.includes('-')&&DELIMITER.test(below)&&(below.includes('|')||below.includes(':'))&&cells(below).length===cells(lines[at]).length;
}
function table(lines,at,open){
if(!tableAt(lines,at))return null;
const head=cells(lines[at]);
const sides=cells(lines[at + 1]).map((cell)=>{
const left=cell.startsWith(':');
const right=cell.endsWith(':');
return right?(left?'center':'right'):'';
});
const row=(texts,tag,unfinished)=>
node('tr',{},head.map((_,column)=>{
const attrs=tag==='th'?{scope:'col'}:{};
if(sides[column])attrs.class=sides[column];
return node(tag,attrs,parseInline(texts[column]??'',unfinished));
}));
const rows=[];
let next=at + 2;
for(;next<lines.length;next +=1){
if(lines[next].trim()===''||(!lines[next].includes('|')&&startsBlock(lines[next])))break;
rows.push(row(cells(lines[next]),'td',open&&next===lines.length - 1));
}
const body=rows.length?[node('tbody',{},rows)]:[];
return{node:node('div',{class:'table',tabindex:'0'},[node('table',{},[node('thead',{},[row(head,'th',false)]),...body])]),next};
}
function startsBlock(line){
if(HEADING.test(line)||RULE.test(line)||QUOTE.test(line)||fenceAt(line))return true;
const item=itemAt(line);
return item !==null&&item.text.trim()!==''&&(!item.ordered||parseInt(item.marker,10)===1);
}
function paragraph(lines,at,depth,open){
let next=at + 1;
while(next<lines.length&&lines[next].trim()!==''&&!startsBlock(lines[next])&&!tableAt(lines,next))next +=1;
const text=lines.slice(at,next).map((line)=>line.trimStart()).join('\n').trimEnd();
return{node:node('p',{},parseInline(text,open&&next===lines.length,depth)),next};
}

// ---- message.js
class MarkdownBody{
constructor(className){
this.element=make('div',{class:className});
this.stream=new MarkdownStream();
this.length=0;
this.shown=[];
this.settledShown=0;
this.spoken=0;
}
draw(text,open){
this.stream.push(text.slice(this.length));
this.length=text.length;
const next=this.stream.blocks(open);
patchNodes(this.element,this.shown,next,this.settledShown);
this.shown=next;
this.settledShown=this.stream.settled.length;
}
fresh(all){
const until=all?this.shown.length:this.settledShown;
const words=this.shown.slice(this.spoken,until).map((block)=>(block.tag==='figure'?'Code.':block.tag==='div'?'Table.':plainText([block])));
this.spoken=Math.max(this.spoken,until);
return words.join('\n');
}
}
class MessageView{
constructor(conversation,message,actions,{last=false,generation=null}={}){
this.conversation=conversation;
this.message=message;
this.actions=actions;
this.last=last;
this.generation=generation;
this.element = make('article', { class: `message ${message.role}`, 'data-id': message.id });
if(message.role==='assistant')this.buildAnswer();
else if(message.role==='tool')this.buildResult();
else this.buildQuestion();
}
buildQuestion(){
this.element.setAttribute('aria-label','You');
this.element.replaceChildren(
make('div',{class:'bubble',dir:'auto'},this.message.content),
make('footer',{},this.versions(),this.bar(
iconButton('edit','Edit and send again',()=>this.startEdit()),
this.copyButton(),
)),
);
}
buildResult(){
this.element.setAttribute('aria-label','Tool result');
this.element.replaceChildren(make('div',{class:'call result'},make('p',{class:'call-head'},icon('check'),' Result'),make('pre',{tabindex:'0'},this.message.content)));
}
buildAnswer(){
this.element.setAttribute('aria-label','Answer');
this.thinkingSummary=make('span',{},'Thoughts');
this.thinking=new MarkdownBody('markdown thoughts');
this.thinkingBox=make('details',{class:'thinking',hidden:true},make('summary',{},this.thinkingSummary),this.thinking.element);
this.thinkingBox.addEventListener('toggle',()=>this.draw());
this.body=new MarkdownBody('markdown');
this.calls=make('div',{class:'calls'});
this.state=make('div',{class:'state',hidden:true});
this.problem=make('div',{class:'problem',hidden:true});
this.footer=make('footer',{});
this.element.replaceChildren(this.thinkingBox,this.body.element,this.calls,this.state,this.problem,this.footer);
this.draw();
this.finish();
}
draw(){
const{message}=this;
const open=this.generation !==null;
this.element.classList.toggle('streaming',open);
this.element.setAttribute('aria-busy',String(open));
if(message.reasoning){
this.thinkingBox.hidden=false;
const live=open&&this.generation.phase==='thinking';
this.thinkingBox.classList.toggle('live',live);
const seconds=message.thoughtSeconds;
const elapsed = live ? Math.floor((performance.now() - this.generation.thinkingSince) / 1000) : 0;
this.thinkingSummary.textContent = live ? `Thinking…${elapsed ? ` ${elapsed} s` : ''}` : seconds ? `Thought for ${formatSeconds(seconds)}` : 'Thoughts';
if(this.thinkingBox.open)this.thinking.draw(message.reasoning,live);
}
this.body.draw(message.content,open);
this.drawCalls();
this.drawState();
}
drawState(){
const{generation}=this;
const phase=generation?.phase;
const elsewhere=this.isWrittenElsewhere();
const shown=elsewhere||phase==='waiting'||phase==='prefill'||phase==='busy';
this.state.hidden=!shown;
if(!shown)return;
if(elsewhere)this.state.replaceChildren('This answer is being written in another tab.');
else if(phase==='prefill'&&generation.progress?.total>0){
const{done,total,cached}=generation.progress;
const words = `Reading the prompt: ${formatCount(done)} of ${plural(total, 'token')}${cached ? `, ${formatCount(cached)} from the cache` : ''}`;
let bar=this.state.querySelector('progress');
if(!bar){
bar=make('progress',{'aria-label':'Reading the prompt'});
this.state.replaceChildren(make('span',{}),bar);
}
this.state.firstElementChild.textContent=words;
bar.max=total;
bar.value=Math.min(done,total);
}else if(phase==='busy'){
const seconds = Math.max(0, Math.ceil((generation.retryAt - Date.now()) / 1000));
this.state.replaceChildren(make('span', {}, `The server is busy. Asking again in ${plural(seconds, 'second')}. `));
}else if(!this.state.querySelector('.dots')){
this.state.replaceChildren(make('span',{class:'dots',role:'img','aria-label':'Waiting for the answer'},make('i'),make('i'),make('i')));
}
}
isWrittenElsewhere(){
return !this.generation&&this.message.pending===true&&this.actions.writtenElsewhere(this.conversation);
}
drawCalls(){
const calls=this.message.calls??[];
calls.forEach((call,index)=>{
if(!this.calls.children[index])this.calls.append(make('section',{class:'call','aria-label':'Tool call'},make('p',{class:'call-head'}),make('div')));
const [head,body]=this.calls.children[index].children;
if(head.dataset.name !==call.name){
head.dataset.name=call.name;
head.replaceChildren(icon('tool'),' Calls ',make('code',{},call.name||'…'));
}
if(body.dataset.text===call.arguments)return;
body.dataset.text=call.arguments;
body.replaceChildren(showArguments(call.arguments));
});
}
finish(){
const{message}=this;
if(this.generation)return;
this.problem.hidden=true;
this.unfinished=message.pending===true;
if(message.error)this.drawProblem(message.error);
else if(message.pending){
if(!this.isWrittenElsewhere())this.drawProblem({code:'interrupted',message:'This answer was interrupted: the page was closed while it was being written.'});
}else if(!message.content&&!message.calls?.length&&!message.stopped)this.drawProblem({code:'empty',message:'The model ended without a word.'});
this.footer.replaceChildren(...[
this.versions(),
this.bar(this.copyButton(),iconButton('again','Another answer',()=>this.actions.regenerate(message),{'data-action':'regenerate'})),
this.figures(),
].filter(Boolean));
if(this.last&&message.calls?.length&&message.finish==='tool_calls'&&!this.resultForm)this.askResults();
}
catchUp(){
if(!this.unfinished||this.generation)return;
this.draw();
this.finish();
}
drawProblem(error){
this.problem.hidden=false;
const parts=[];
if(error.code==='context_length_exceeded'){
parts.push(make('strong',{},'This chat no longer fits the model’s context.'),make('p',{},explainContext(error.message,this.actions.contextLength())));
parts.push(make('button',{type:'button',class:'primary',onclick:()=>this.actions.restart(this.message)},'Start a new chat with this message'));
}else{
parts.push(make('p',{},error.message),make('button',{type:'button',class:'quiet',onclick:()=>this.actions.retry(this.message)},'Try again'));
}
this.problem.replaceChildren(...parts);
}
figures(){
const{stats={},stopped,finish}=this.message;
const parts=[];
if(stopped)parts.push('stopped');
else if(finish==='length')parts.push('cut at the token limit');
if(stats.tokens !==undefined)parts.push(plural(stats.tokens,'token'));
if (stats.rate !== undefined) parts.push(`${formatRate(stats.rate)} tok/s`);
if (stats.firstSeconds !== undefined) parts.push(`first token after ${formatSeconds(stats.firstSeconds)}`);
if (stats.promptTokens !== undefined) parts.push(stats.cachedTokens ? `${formatCount(stats.cachedTokens)} of ${formatCount(stats.promptTokens)} prompt tokens cached` : plural(stats.promptTokens, 'prompt token'));
return parts.length?make('p',{class:'figures'},parts.join(' · ')):null;
}
versions(){
const{all,index}=versionsOf(this.conversation,this.message);
if(all.length<2)return null;
const go=(step)=>()=>this.actions.show(all[index + step],step);
return make('div',{class:'versions',role:'group','aria-label':'Versions'},
iconButton('left','Previous version',go(-1),{disabled:index===0}),
make('span', {}, `${index + 1}/${all.length}`),
iconButton('right','Next version',go(1),{disabled:index===all.length - 1}));
}
bar(...buttons){
return make('div',{class:'actions'},...buttons);
}
copyButton(){
return iconButton('copy','Copy',(event)=>this.actions.copy(this.message.content,event.currentTarget),{'data-action':'copy-message'});
}
startEdit(){
const field=make('textarea',{'aria-label':'Edit the message',rows:'3',dir:'auto'});
field.value=this.message.content;
const leave=()=>{
this.buildQuestion();
this.element.querySelector('button')?.focus();
};
const send=()=>{
if(field.value.trim())this.actions.edit(this.message,field.value);
};
field.addEventListener('keydown',(event)=>{
if(composing(event))return;
if(event.key==='Escape'){
event.stopPropagation();
leave();
}else if(event.key==='Enter'&&!event.shiftKey){
event.preventDefault();
send();
}
});
this.element.replaceChildren(make('div',{class:'edit'},field,make('div',{class:'buttons'},
make('button',{type:'button',class:'quiet',onclick:leave},'Cancel'),
make('button',{type:'button',class:'primary',onclick:send},'Send'))));
field.style.height = `${Math.min(field.scrollHeight + 2, 400)}px`;
field.focus();
field.setSelectionRange(field.value.length,field.value.length);
}
askResults(){
const fields = this.message.calls.map((call) => make('textarea', { rows: '2', 'aria-label': `Result of ${call.name}`, placeholder: `Result of ${call.name}` }));
this.resultForm=make('form',{class:'results',onsubmit:(event)=>{
event.preventDefault();
this.actions.results(this.message,fields.map((field)=>field.value));
}},make('p',{class:'soft'},'The model waits for these results. This page runs no tools: write what they would say.'),...fields,make('div',{class:'buttons'},make('button',{type:'submit',class:'primary'},'Send the results')));
this.calls.after(this.resultForm);
}
}
function showArguments(text){
try{
const value=JSON.parse(text);
if(typeof value==='object'&&value !==null&&!Array.isArray(value)){
const entries=Object.entries(value);
if(entries.length===0)return make('p',{class:'soft'},'no arguments');
return make('dl',{},...entries.flatMap(([name,item])=>[make('dt',{},name),make('dd',{},typeof item==='string'?item:JSON.stringify(item,null,1))]));
}
}catch{
}
return make('pre',{tabindex:'0'},text);
}
function explainContext(words,contextLength){
const numbers = (words.match(/\d[\d,]*/g) ?? []).map((found) => Number(found.replace(/,/g, ''))).filter((value) => value > 0);
const limit=contextLength&&numbers.includes(contextLength)?contextLength:numbers.length>=2?Math.min(...numbers):contextLength;
const wanted=numbers.filter((value)=>value>(limit??0)).sort((a,b)=>a - b)[0];
if(!limit||!wanted)return words;
return `The conversation is ${formatCount(wanted)} tokens long, the context holds ${formatCount(limit)}. Begin again, shorten an earlier message, or start the server with a larger --context.`;
}

// ---- notices.js
const TOAST_MS=8_000;
const ANNOUNCE_EVERY_MS=1_500;
function toast(text,{action=null,onaction=null,lasting=false}={}){
const holder=byId('toasts');
if((lasting||!action)&&[...holder.children].some((other)=>other.firstChild.textContent===text))return;
const element=make('div',{class:'toast'},make('span',{},text));
let timer=0;
const close=()=>{
clearTimeout(timer);
element.remove();
};
if(action){
element.append(make('button',{type:'button',class:'link',onclick:()=>{
close();
onaction();
}},action));
}
element.append(iconButton('close','Dismiss',close));
const start=()=>{
clearTimeout(timer);
if(!lasting)timer=setTimeout(close,TOAST_MS);
};
for(const name of ['pointerenter','focusin'])element.addEventListener(name,()=>clearTimeout(timer));
for(const name of ['pointerleave','focusout'])element.addEventListener(name,start);
while(holder.childElementCount>=4)holder.firstElementChild.remove();
holder.append(element);
start();
}
function banner(text,{action=null,onaction=null,kind='warning'}={}){
const element=byId('banner');
element.hidden=!text;
element.dataset.kind=kind;
if(element.firstElementChild?.textContent===text)return;
element.replaceChildren(make('span',{},text??''),...(action?[make('button',{type:'button',class:'link',onclick:onaction},action)]:[]));
}
const waiting=[];
let speaking=0;
function announce(text){
if(text.trim())waiting.push(text.trim());
if(speaking||waiting.length===0)return;
byId('announcer').textContent=waiting.splice(0).join(' ').slice(0,2_000);
speaking=setTimeout(()=>{
speaking=0;
announce('');
},ANNOUNCE_EVERY_MS);
}

// ---- settings.js
const STORAGE_NAME='millstream.settings';
const NUMBERS={
temperature:['temperature',0,2,false],
topP:['top_p',0,1,false],
topK:['top_k',0,100_000,true],
minP:['min_p',0,1,false],
repetition:['repetition_penalty',0.1,2,false],
maxTokens:['max_tokens',1,10_000_000,true],
seed:['seed',0,Number.MAX_SAFE_INTEGER,true],
};
const DEFAULTS={
system:'',thinking:'auto',schema:'',tools:'',theme:'auto',panel:null,singleKeys:true,
...Object.fromEntries(Object.keys(NUMBERS).map((name)=>[name,null])),
};
const CHOICES={thinking:['auto','on','off'],theme:['auto','light','dark'],panel:[null,true,false]};
function loadSettings(){
let kept={};
try{
kept=JSON.parse(localStorage.getItem(STORAGE_NAME)??'{}')??{};
}catch{
}
const settings={...DEFAULTS};
for(const name of Object.keys(DEFAULTS))if(fits(name,kept[name]))settings[name]=kept[name];
return settings;
}
function saveSettings(settings){
try{
localStorage.setItem(STORAGE_NAME,JSON.stringify(settings));
}catch{
}
}
function followSettings(settings,changed){
addEventListener('storage',(event)=>{
if(event.key !==STORAGE_NAME)return;
Object.assign(settings,loadSettings());
changed();
});
}
function parseNumber(name,text){
const [,low,high,whole]=NUMBERS[name];
if(text.trim()==='')return null;
const value=Number(text);
if (!Number.isFinite(value) || value < low || value > high) throw new Error(`between ${low} and ${high}`);
if(whole&&!Number.isInteger(value))throw new Error('a whole number');
return value;
}
function parseJsonField(text,kind){
if(text.trim()==='')return null;
let value;
try{
value=JSON.parse(text);
}catch(error){
throw new Error(`not JSON: ${error.message}`);
}
if(kind==='list'&&!Array.isArray(value))throw new Error('a list of tools is expected');
if(kind==='object'&&(typeof value !=='object'||value===null||Array.isArray(value)))throw new Error('an object is expected');
return value;
}
function requestFields(settings){
const fields={};
for(const [name,[field]] of Object.entries(NUMBERS))if(settings[name] !==null)fields[field]=settings[name];
if(settings.thinking !=='auto')fields.enable_thinking=settings.thinking==='on';
const schema=parseJsonField(settings.schema,'object');
if(schema)fields.response_format={type:'json_schema',json_schema:{name:'answer',strict:true,schema}};
const tools=parseJsonField(settings.tools,'list');
if(tools?.length)fields.tools=tools;
return fields;
}
function fits(name,value){
if(value===undefined)return false;
if(name in NUMBERS){
const [,low,high,whole]=NUMBERS[name];
return value===null||(Number.isFinite(value)&&value>=low&&value<=high&&(!whole||Number.isInteger(value)));
}
if(name in CHOICES)return CHOICES[name].includes(value);
return typeof value===typeof DEFAULTS[name];
}

// ---- chat.js
const NEAR_END_PX=90;
const SAVE_EVERY_MS=2_000;
const SUGGESTIONS=['Tell me a story about a fox and a lantern','What is 48 + 27?','Explain in three sentences what a mixture of experts is','Write a Python function that reverses a list, with a test'];
class Chat{
constructor({library,settings,connection,opened,changed,openSettings,askKey}){
Object.assign(this,{library,settings,connection,opened,changed,openSettings,askKey});
this.conversation=null;
this.views=new Map();
this.generations=new Map();
this.savedAt=new Map();
this.frame=0;
this.follow=true;
this.lastTop=0;
this.scroll=byId('scroll');
this.holder=byId('messages');
this.input=byId('input');
this.wire();
}
wire(){
byId('composer').addEventListener('submit',(event)=>{
event.preventDefault();
this.send();
});
this.input.addEventListener('keydown',(event)=>{
if(event.key==='Enter'&&!event.shiftKey&&!composing(event)){
event.preventDefault();
this.send();
}else if(event.key==='ArrowUp'&&this.input.value===''){
const mine=this.conversation&&pathOf(this.conversation).findLast((message)=>message.role==='user');
if(mine&&!this.generation()){
event.preventDefault();
this.views.get(mine.id)?.startEdit();
}
}
});
this.input.addEventListener('input',()=>this.resize());
byId('stop').addEventListener('click',()=>this.stop());
byId('jump').addEventListener('click',()=>{
this.scroll.focus();
this.toEnd();
});
this.scroll.addEventListener('scroll',()=>this.scrolled(),{passive:true});
this.holder.addEventListener('click',(event)=>{
const button=event.target.closest('[data-action="copy-code"]');
if(button)this.copyCode(button);
});
setInterval(()=>{
if(!document.hidden&&['busy','thinking'].includes(this.generation()?.phase))this.redraw();
},1_000);
}
generation(){
return(this.conversation&&this.generations.get(this.conversation.id))??null;
}
open(conversation,focus=true){
this.conversation=conversation;
this.follow=true;
this.render();
this.toEnd();
this.opened(conversation);
if(focus)this.input.focus();
}
render(){
this.views.clear();
const path=this.conversation?pathOf(this.conversation):[];
const running=this.generation();
const elements=path.map((message,index)=>{
const view=new MessageView(this.conversation,message,this.actions(),{last:index===path.length - 1,generation:running?.message===message?running:null});
this.views.set(message.id,view);
return view.element;
});
this.holder.replaceChildren(...(elements.length?elements:[this.welcome()]));
this.controls();
}
changedElsewhere(id){
const running=this.generations.get(id);
if(running)chooseTo(running.conversation,running.message);
if(this.conversation?.id !==id)return;
const path=pathOf(this.conversation);
if(path.length===this.views.size&&path.every((message)=>this.views.has(message.id))){
for(const view of this.views.values())view.catchUp();
}else if(!this.holder.querySelector('.edit'))this.render();
if(this.follow)this.toEnd();
}
welcome(){
const choose=(text)=>()=>{
this.input.value=text;
this.resize();
this.send();
};
return make('div',{class:'welcome'},
make('img',{src:'icon.svg',alt:'',width:'72',height:'72'}),
make('p',{class:'hello'},'What shall we grind?'),
make('p',{class:'soft'},'Everything stays here: the model runs on this server, the conversations are kept in this browser.'),
make('ul',{class:'suggestions'},...SUGGESTIONS.map((text)=>make('li',{},make('button',{type:'button',onclick:choose(text)},text)))));
}
actions(){
return{
copy:(text,button)=>this.copied(text,button),
edit:(message,text)=>this.say(message.parent,text),
regenerate:(message)=>this.answer(message.parent),
retry:(message)=>this.retry(message),
show:(message,step)=>this.show(message,step),
restart:(message)=>this.restart(message),
results:(message,texts)=>this.results(message,texts),
contextLength:()=>this.connection.contextLength,
writtenElsewhere:(conversation)=>this.library.busyElsewhere.has(conversation.id),
};
}
occupied(){
if(this.generation())toast('Stop the answer first.');
return this.generation()!==null;
}
send(){
const text=this.input.value;
if(!text.trim()||this.occupied())return;
if(this.connection.state==='locked'){
this.askKey();
return;
}
if(this.connection.state !=='ready'){
toast(this.connection.state==='loading'?'The model is still being loaded.':'The server is not there yet.');
return;
}
const last=this.conversation?pathOf(this.conversation).at(-1):null;
if(this.say(last?.id??null,text)){
this.input.value='';
this.resize();
}
}
say(parent,text){
if(this.occupied()||!this.fields())return false;
const fresh=!this.conversation;
if(fresh)this.conversation=newConversation(this.settings.system);
const message=addMessage(this.conversation,parent,{role:'user',content:text});
if(fresh){
this.library.conversations.set(this.conversation.id,this.conversation);
this.opened(this.conversation);
}
this.answer(message.id);
return true;
}
answer(parent){
const fields=this.fields();
if(!fields||this.occupied())return;
const{conversation}=this;
const message=addMessage(conversation,parent,{role:'assistant',pending:true});
const body={model:this.connection.model??'default',messages:requestMessages(conversation,message.id),...fields};
const generation=new Generation(conversation,message,body,(running,change)=>this.heard(running,change));
this.generations.set(conversation.id,generation);
this.follow=true;
this.render();
this.toEnd();
if(document.activeElement===document.body&&matchMedia('(hover: hover)').matches)this.input.focus();
this.library.save(conversation);
this.changed(conversation);
announce('Sent.');
generation.run();
}
retry(message){
if(this.occupied())return;
const bare=!message.content&&!message.calls?.length&&childrenOf(this.conversation,message.id).length===0;
if(bare)dropMessage(this.conversation,message);
this.answer(message.parent);
}
restart(message){
const asked=this.conversation.messages.find((other)=>other.id===message.parent);
this.open(null);
this.input.value=asked?.content??'';
this.resize();
}
results(message,texts){
if(this.occupied())return;
let parent=message.id;
message.calls.forEach((call,index)=>{
parent=addMessage(this.conversation,parent,{role:'tool',call:call.id,content:texts[index]}).id;
});
this.answer(parent);
}
show(message,step){
if(!message||this.occupied())return;
choose(this.conversation,message);
this.render();
this.library.save(this.conversation);
const buttons=this.views.get(message.id)?.element.querySelectorAll('.versions button')??[];
const button=buttons[step<0?0:1];
(button?.disabled?buttons[step<0?1:0]:button)?.focus();
}
regenerateLast(){
const last=this.conversation&&pathOf(this.conversation).findLast((message)=>message.role==='assistant');
if(last)this.answer(last.parent);
}
stop(){
const running=this.generation();
running?.stop();
return running !==null;
}
fields(){
try{
return requestFields(this.settings);
}catch(error){
toast(`The settings cannot be used: ${error.message}.`, { action: 'Open settings', onaction: () => this.openSettings() });
return null;
}
}
heard(running,change){
const{conversation}=running;
const save=()=>this.library.get(conversation.id)===conversation&&this.library.save(conversation);
if(change==='done'){
this.generations.delete(conversation.id);
conversation.updated=Date.now();
save();
this.changed(conversation);
this.ended(running);
return;
}
const now=Date.now();
if(now -(this.savedAt.get(conversation.id)??now)>SAVE_EVERY_MS){
this.savedAt.set(conversation.id,now);
save();
}else if(!this.savedAt.has(conversation.id))this.savedAt.set(conversation.id,now);
if(conversation===this.conversation)this.redraw();
}
ended(running){
if(running.failure?.status===401){
this.connection.lock();
this.askKey();
}else if(running.failure?.status===0)this.connection.check();
if(running.conversation !==this.conversation)return;
const view=this.views.get(running.message.id);
if(!view)return;
view.generation=null;
view.draw();
view.finish();
this.controls();
const{message}=running;
announce(`${view.body.fresh(true)} ${message.error ? `The answer failed: ${message.error.message}` : message.stopped ? 'Stopped.' : 'End of the answer.'}`);
if(this.follow)this.toEnd();
}
redraw(){
if(this.frame)return;
this.frame=requestAnimationFrame(()=>{
this.frame=0;
const running=this.generation();
const view=running&&this.views.get(running.message.id);
if(!view)return;
view.draw();
announce(view.body.fresh(false));
if(this.follow)this.toEnd();
});
}
controls(){
const running=this.generation()!==null;
const focused=document.activeElement;
byId('send').hidden=running;
byId('stop').hidden=!running;
if(focused===byId('send')&&running)byId('stop').focus();
else if(focused===byId('stop')&&!running)this.input.focus();
this.holder.classList.toggle('busy',running);
const path=this.conversation?pathOf(this.conversation):[];
const stats=path.findLast((message)=>message.stats?.promptTokens !==undefined)?.stats;
const limit=this.connection.contextLength;
const used=stats?stats.promptTokens +(stats.tokens??0):0;
byId('context').textContent = used && limit ? `${formatCount(used)} of ${formatCount(limit)} tokens of context` : '';
byId('context').classList.toggle('nearly',Boolean(limit)&&used>limit * 0.85);
}
scrolled(){
const{scrollHeight,scrollTop,clientHeight}=this.scroll;
const left=scrollHeight - scrollTop - clientHeight;
if(scrollTop<this.lastTop - 1)this.follow=left<8;
else if(left<NEAR_END_PX)this.follow=true;
this.lastTop=scrollTop;
byId('jump').hidden=this.follow;
}
toEnd(){
this.scroll.scrollTop=this.scroll.scrollHeight;
this.follow=true;
byId('jump').hidden=true;
}
resize(){
this.input.style.height='auto';
this.input.style.height = `${Math.min(this.input.scrollHeight, innerHeight * 0.4)}px`;
}
async copied(text,button){
const done=await copyText(text);
if(!done){
toast('The browser did not allow copying.');
return;
}
button.replaceChildren(icon('check'));
announce('Copied.');
setTimeout(()=>button.replaceChildren(icon('copy')),1_500);
}
async copyCode(button){
const code=button.closest('figure').querySelector('code').textContent;
const done=await copyText(code);
button.firstChild.data=done?'Copied':'Not allowed';
announce(done?'Copied.':'The browser did not allow copying.');
setTimeout(()=>{
if(button.firstChild)button.firstChild.data='Copy';
},1_500);
}
}

// ---- connection.js
const READY_INTERVAL_MS=20_000;
const LOADING_INTERVAL_MS=1_000;
const GONE_INTERVALS_MS=[1_000,2_000,4_000,8_000,15_000];
class Connection{
constructor(changed){
this.changed=changed;
this.state='connecting';
this.model=null;
this.contextLength=null;
this.health=null;
this.retryAt=0;
this.failures=0;
this.timer=0;
this.checking=null;
document.addEventListener('visibilitychange',()=>{
if(document.hidden)clearTimeout(this.timer);
else this.check();
});
}
check(){
this.checking??=this.ask().finally(()=>{
this.checking=null;
});
return this.checking;
}
async ask(){
clearTimeout(this.timer);
try{
const response=await request('health',{accept:[503]});
const health=await response.json().catch(()=>({}));
this.health=health;
this.failures=0;
if(health.status==='loading')return this.become('loading',LOADING_INTERVAL_MS);
if(!response.ok)return this.fail();
if(this.state !=='ready'||!this.model){
const models = await requestJson('v1/models');
const first=models.data?.[0]??{};
this.model=typeof first.id==='string'?first.id:String(health.model??'model');
this.contextLength=Number.isFinite(first.context_length)?first.context_length:null;
}
return this.become('ready',READY_INTERVAL_MS);
}catch(error){
if(error.status===401)return this.become('locked',0);
return this.fail();
}
}
lock(){
clearTimeout(this.timer);
this.become('locked',0);
}
fail(){
const wait=GONE_INTERVALS_MS[Math.min(this.failures,GONE_INTERVALS_MS.length - 1)];
this.failures +=1;
this.become('gone',wait);
}
become(state,wait){
const before=this.state;
this.state=state;
this.retryAt=wait?Date.now()+ wait:0;
if(wait&&!document.hidden)this.timer=setTimeout(()=>this.check(),wait);
if(before !==state||state==='gone'||state==='loading')this.changed(this);
}
}

// ---- dialogs.js
const NUMBER_FIELDS=[
['temperature','Temperature','How freely words are chosen: 0 always takes the likeliest.','0.1'],
['topP','Top p','Only the likeliest words that make up this share.','0.05'],
['topK','Top k','Only so many of the likeliest words.','1'],
['minP','Min p','Only words at least this likely, relative to the likeliest.','0.01'],
['repetition','Repetition penalty','Above 1 makes words that came before less likely.','0.05'],
['maxTokens','Max tokens','Where an answer is cut at the latest.','1'],
['seed','Seed','The same seed and prompt give the same answer.','1'],
];
const SHORTCUTS=[
['Anywhere',[
['Alt N', 'new chat'], ['Alt ↑ / Alt ↓', 'previous or next conversation'], ['Alt P', 'machine at work, open or close'], ['Alt S', 'settings'], ['Alt R', 'another answer'], ['Ctrl K', 'search conversations'], ['Esc', 'stop the answer; close what is open'],
]],
['In the message field',[['Enter','send'],['Shift Enter','new line'],['↑ when empty','edit your last message']]],
['In the list of conversations',[['↑ ↓','move'],['Enter','open'],['F2','rename'],['Delete','delete, with undo']]],
['Outside text fields', [['/', 'message field'], ['n', 'new chat'], ['j / k', 'next or previous conversation'], ['r', 'another answer'], ['p', 'machine at work'], ['s', 'settings'], ['t', 'light, dark or as the system'], ['?', 'this list']]],
];
function openSettings(settings,conversation,done){
const dialog=byId('settings');
const form=byId('settings-form');
const system=make('textarea',{id:'set-system',rows:'4',placeholder:'You are a helpful miller.'});
system.value=conversation?conversation.system:settings.system;
const keep=make('input',{type:'checkbox',id:'set-keep'});
keep.checked=!conversation||conversation.system===settings.system;
const thinking=make('select',{id:'set-thinking'},...[['auto','as the model likes'],['on','on'],['off','off']].map(([value,text])=>make('option',{value},text)));
thinking.value=settings.thinking;
const schema=make('textarea',{id:'set-schema',rows:'5',spellcheck:'false',class:'mono',placeholder:'{"type": "object", "properties": {"name": {"type": "string"}}}','aria-describedby':'set-schema-error'});
schema.value=settings.schema;
const tools=make('textarea',{id:'set-tools',rows:'5',spellcheck:'false',class:'mono',placeholder:'[{"type": "function", "function": {"name": "…", "parameters": {…}}}]','aria-describedby':'set-tools-error'});
tools.value=settings.tools;
const numbers=Object.fromEntries(NUMBER_FIELDS.map(([name,,,step])=>{
const [,low,high]=NUMBERS[name];
const input = make('input', { type: 'number', id: `set-${name}`, step, min: low, max: high, inputmode: 'decimal', placeholder: 'server decides', 'aria-describedby': `set-${name}-help set-${name}-error` });
input.value=settings[name]??'';
return [name,input];
}));
const error = (id) => make('p', { class: 'field-error', id: `set-${id}-error`, role: 'alert' });
const field = (id, label, input, help) => make('div', { class: 'field' }, make('label', { for: `set-${id}` }, label), input, help ? make('p', { class: 'caption', id: `set-${id}-help` }, help) : null, error(id));
const save=()=>{
const wrong=[];
const changed={};
const read=(id,work)=>{
const place = form.querySelector(`#set-${id}-error`);
const input = form.querySelector(`#set-${id}`);
place.textContent='';
input.removeAttribute('aria-invalid');
try{
return work();
}catch(problem){
place.textContent = `Expected: ${problem.message}`;
input.setAttribute('aria-invalid','true');
wrong.push(input);
return null;
}
};
for(const [name,input] of Object.entries(numbers)){
changed[name]=read(name,()=>{
if(input.validity.badInput)throw new Error('a number');
return parseNumber(name,input.value);
});
}
read('schema',()=>parseJsonField(schema.value,'object'));
read('tools',()=>parseJsonField(tools.value,'list'));
if(wrong.length){
wrong[0].closest('details')?.setAttribute('open','');
wrong[0].focus();
return;
}
Object.assign(settings,changed,{thinking:thinking.value,schema:schema.value,tools:tools.value});
if(conversation)conversation.system=system.value;
if(keep.checked||!conversation)settings.system=system.value;
saveSettings(settings);
dialog.close();
done();
};
const reset=()=>{
for(const input of Object.values(numbers))input.value='';
thinking.value='auto';
schema.value='';
tools.value='';
};
form.replaceChildren(
make('div',{class:'card-head'},make('h2',{},'Settings'),iconButton('close','Close without saving',()=>dialog.close())),
field('system','System prompt',system,'Said to the model before everything else.'),
conversation?make('p',{class:'check'},keep,make('label',{for:'set-keep'},'Also for new chats')):null,
field('thinking','Thinking',thinking,'Whether a model that can think does so before it answers.'),
make('fieldset',{},make('legend',{},'Sampling'),make('div',{class:'fields'},...NUMBER_FIELDS.map(([name,label,help])=>field(name,label,numbers[name],help)))),
make('details',{class:'advanced',open:Boolean(settings.schema||settings.tools)},make('summary',{},'Advanced'),
field('schema','Answer in this JSON schema',schema,'The answer can then be nothing but JSON of this shape.'),
field('tools','Tools',tools,'A list in the form of the OpenAI API. When the model calls one, you write its result.')),
make('div',{class:'buttons'},make('button',{type:'button',class:'quiet',onclick:reset},'Reset'),make('span',{class:'spacer'}),
make('button',{type:'button',class:'quiet',onclick:()=>dialog.close()},'Cancel'),make('button',{type:'submit',class:'primary'},'Save')),
);
form.onsubmit=(event)=>{
event.preventDefault();
save();
};
dialog.showModal();
system.focus();
}
function closeBeside(dialog){
const isBeside=({clientX,clientY})=>{
const{left,right,top,bottom}=dialog.getBoundingClientRect();
return clientX<left||clientX>right||clientY<top||clientY>bottom;
};
let began=false;
dialog.addEventListener('pointerdown',(event)=>{
began=isBeside(event);
});
dialog.addEventListener('click',(event)=>{
if(began&&event.target===dialog&&isBeside(event))dialog.close();
});
}
function openShortcuts(settings){
const dialog=byId('shortcuts');
const single=make('input',{type:'checkbox',id:'single-keys'});
single.checked=settings.singleKeys;
single.addEventListener('change',()=>{
settings.singleKeys=single.checked;
saveSettings(settings);
});
const keys = (text) => text.split(' ').map((part) => (['/', 'when', 'empty'].includes(part) && text !== '/' ? ` ${part} ` : make('kbd', {}, part)));
dialog.replaceChildren(
make('div',{class:'card-head'},make('h2',{},'Keyboard shortcuts'),iconButton('close','Close',()=>dialog.close())),
make('div',{class:'shortcut-groups'},...SHORTCUTS.map(([name,rows])=>make('section',{},make('h3',{},name),make('dl',{},...rows.flatMap(([combination,words])=>[make('dt',{},...keys(combination)),make('dd',{},words)]))))),
make('p',{class:'check'},single,make('label',{for:'single-keys'},'Use the single keys of the last group (but for ?)')),
);
dialog.showModal();
}
function askKey(unlock){
const dialog=byId('key');
if(dialog.open)return;
const input=byId('key-input');
const error=byId('key-error');
byId('key-form').onsubmit=async(event)=>{
event.preventDefault();
error.textContent='';
if(await unlock(input.value.trim())){
input.value='';
dialog.close();
}else{
error.textContent='The server does not take this key.';
input.select();
}
};
error.textContent='';
dialog.showModal();
input.focus();
}

// ---- store.js
const NAME='millstream';
const TABLE='conversations';
async function openStore(){
try{
const database=await openDatabase();
return new DatabaseStore(database);
}catch{
return new MemoryStore();
}
}
function isFull(error){
return error?.name==='QuotaExceededError'||error?.inner?.name==='QuotaExceededError';
}
function openDatabase(){
return new Promise((resolve,reject)=>{
const opening=indexedDB.open(NAME,1);
opening.onupgradeneeded=()=>opening.result.createObjectStore(TABLE,{keyPath:'id'});
opening.onsuccess=()=>resolve(opening.result);
opening.onerror=()=>reject(opening.error);
opening.onblocked=()=>reject(new Error('another tab holds an older store'));
});
}
class DatabaseStore{
constructor(database){
this.database=database;
this.persistent=true;
database.onversionchange=()=>database.close();
}
run(mode,work){
return new Promise((resolve,reject)=>{
const transaction=this.database.transaction(TABLE,mode);
const asked=work(transaction.objectStore(TABLE),reject);
transaction.oncomplete=()=>resolve(asked.result);
transaction.onabort=()=>reject(transaction.error??asked.error??new Error('the browser gave up writing'));
});
}
all(){
return this.run('readonly',(table)=>table.getAll());
}
get(id){
return this.run('readonly',(table)=>table.get(id));
}
update(id,renew){
return this.run('readwrite',(table,fail)=>{
const reading=table.get(id);
reading.onsuccess=()=>{
try{
table.put(renew(reading.result));
}catch(error){
fail(error);
}
};
return reading;
});
}
remove(id){
return this.run('readwrite',(table)=>table.delete(id));
}
}
class MemoryStore{
constructor(){
this.values=new Map();
this.persistent=false;
}
async all(){
return [...this.values.values()];
}
async get(id){
return structuredClone(this.values.get(id));
}
async update(id,renew){
this.values.set(id,structuredClone(renew(await this.get(id))));
}
async remove(id){
this.values.delete(id);
}
}

// ---- library.js
class Library{
constructor({changed,failed,busy}){
Object.assign(this,{changed,failed,busy});
this.conversations=new Map();
this.busyElsewhere=new Set();
this.store=null;
this.channel=typeof BroadcastChannel==='function'?new BroadcastChannel('millstream'):null;
if(this.channel)this.channel.onmessage=(event)=>this.fromOtherTab(event.data);
}
async open(){
this.store=await openStore();
try{
for(const conversation of await this.store.all())this.conversations.set(conversation.id,conversation);
}catch(error){
this.failed('The conversations of this browser could not be read.',error);
}
return this.store.persistent;
}
list(){
return [...this.conversations.values()].sort((a,b)=>b.updated - a.updated);
}
get(id){
return this.conversations.get(id)??null;
}
async save(conversation){
this.conversations.set(conversation.id,conversation);
try{
await this.store.update(conversation.id,(kept)=>{
if(kept)adoptMessages(conversation,kept);
return conversation;
});
this.tell(conversation.id,this.busy(conversation.id));
return true;
}catch(error){
this.failed(isFull(error)
?'The browser’s storage is full, so this chat is not kept. Export it, or delete others.'
:'The browser could not keep this chat. Export it before you close the tab.',error);
return false;
}
}
tell(saved,busy){
this.channel?.postMessage({saved,busy});
}
async remove(id){
this.conversations.delete(id);
try{
await this.store.remove(id);
this.channel?.postMessage({removed:id});
}catch(error){
this.failed('The browser could not delete this chat.',error);
}
}
exported(id=null){
return exportText(id?[this.get(id)]:this.list());
}
async import(text){
const imported=importText(text);
const added=mergeImported(this.list(),imported);
for(const conversation of added)await this.save(conversation);
return{added,skipped:imported.length - added.length};
}
async fromOtherTab({saved,removed,busy}){
if(!this.store)return;
if(busy)this.busyElsewhere.add(saved);
else this.busyElsewhere.delete(saved??removed);
if(removed)this.conversations.delete(removed);
const fresh=saved&&(await this.store.get(saved).catch(()=>null));
if(fresh){
const known=this.get(saved);
if(known)adopt(known,fresh);
else this.conversations.set(saved,fresh);
}
this.changed(saved??removed);
}
}

// ---- live.js
const PAUSES_MS=[500,1_000,2_000,5_000];
const SILENCE_MAX_MS=12_000;
class LiveStream{
constructor(listeners){
this.listeners=listeners;
this.wanted=false;
this.abort=null;
document.addEventListener('visibilitychange',()=>this.update());
}
want(wanted){
this.wanted=wanted;
this.update();
}
update(){
const open=this.wanted&&!document.hidden;
if(open&&!this.abort){
this.abort=new AbortController();
this.run(this.abort.signal);
}else if(!open&&this.abort){
this.abort.abort();
this.abort=null;
this.listeners.state('off');
}
}
async run(signal){
let failures=0;
while(!signal.aborted){
this.listeners.state('waiting');
const attempt=new AbortController();
const end=()=>attempt.abort();
signal.addEventListener('abort',end);
let watchdog=setTimeout(end,SILENCE_MAX_MS);
try{
const response = await request('live', { signal: attempt.signal, headers: { Accept: 'text/event-stream' } });
for await(const{event,data}of readEvents(response.body)){
clearTimeout(watchdog);
watchdog=setTimeout(end,SILENCE_MAX_MS);
failures=0;
if(signal.aborted)break;
if(event==='hello'){
this.listeners.hello(JSON.parse(data));
this.listeners.state('on');
}else if(event==='beat')this.listeners.beat(JSON.parse(data));
}
}catch{
}
clearTimeout(watchdog);
signal.removeEventListener('abort',end);
if(signal.aborted)return;
this.listeners.state('waiting');
await new Promise((resolve)=>{
setTimeout(resolve,PAUSES_MS[Math.min(failures,PAUSES_MS.length - 1)]);
});
failures +=1;
}
}
}

// ---- grid.js
const GLOW_S=0.55;
const FLASH_S=0.9;
const FRAME_MS=33;
const BEAT_MS=250;
const COLD=0.02;
const GUTTER_PX=24;
const MARGIN_PX=8;
const CELLS_MAX=1<<20;
const SPACE_PX=3;
const COLUMNS_MIN=14;
function decodeBits(text,count){
const bytes=Uint8Array.from(atob(text),(char)=>char.charCodeAt(0));
const bits=new Uint8Array(count);
for(let index=0;index<count;index +=1)bits[index]=((bytes[index>>3]??0)>>(index&7))&1;
return bits;
}
function chooseLayout(layers,experts,width,heightMax){
let best=null;
for(let rows=1;rows<=64&&rows<=experts;rows +=1){
const columns = Math.ceil(experts / rows);
const space=rows>1?SPACE_PX:0;
const across = Math.min(width / columns, width / COLUMNS_MIN);
const down = Math.floor(Math.min(across, (heightMax / layers - space) / rows));
if(!best||Math.min(across,down)>Math.min(best.across,best.down))best={across,down,rows,columns,band:rows * down + space};
}
if(best.down<1||best.across<1){
const columns=Math.max(1,Math.min(experts,Math.floor(width)));
const rows = Math.ceil(experts / columns);
best={across:1,down:1,rows,columns,band:rows + 1};
}
const size=Math.min(best.across,best.down);
return{...best,gap:size>=12?3:size>=7?2:size>=3?1:0};
}
class ExpertGrid{
constructor(canvas,tooltip,heightMax){
this.canvas=canvas;
this.tooltip=tooltip;
this.heightMax=heightMax;
this.layers=0;
this.experts=0;
this.queue=[];
this.frame=0;
this.drawn=0;
this.still=matchMedia('(prefers-reduced-motion: reduce)');
this.pointed=-1;
canvas.addEventListener('pointermove',(event)=>this.point(this.cellAt(event.offsetX,event.offsetY)));
canvas.addEventListener('pointerleave',()=>this.point(-1));
canvas.addEventListener('blur',()=>this.point(-1));
canvas.addEventListener('keydown',(event)=>this.key(event));
new ResizeObserver(()=>{
if(canvas.parentElement.clientWidth !==this.laidOutWidth)this.layout();
}).observe(canvas.parentElement);
}
shape(layers,experts){
const count=layers * experts;
this.valid=Number.isInteger(count)&&count>0&&count<=CELLS_MAX;
this.layers=layers;
this.experts=experts;
const size=this.valid?count:0;
this.resident=new Uint8Array(size);
this.glow=new Float32Array(size);
this.flash=new Float32Array(size);
this.hits=new Uint32Array(size);
this.reads=new Uint32Array(size);
this.queue=[];
this.lastBeat={hits:0,reads:0};
this.layout();
}
beat(grid){
if(!this.valid||!grid)return;
if(typeof grid.resident==='string')this.resident=decodeBits(grid.resident,this.layers * this.experts);
const now=performance.now();
this.lastBeat={hits:0,reads:0};
const take=(given,counts,kind)=>{
const list=Array.isArray(given)?given:[];
const most=list.reduce((found,[,,times=1])=>Math.max(found,times),1);
for(const [layer,expert,times=1] of list){
if(!(layer>=0&&layer<this.layers&&expert>=0&&expert<this.experts))continue;
const cell=layer * this.experts + expert;
counts[cell] +=times;
this.lastBeat[kind] +=times;
this.queue.push({ at: this.still.matches ? now : now + (layer / this.layers) * BEAT_MS, cell, kind, strength: 0.3 + 0.7 * Math.sqrt(Math.min(1, times / most)) });
}
};
take(grid.hits,this.hits,'hits');
take(grid.reads,this.reads,'reads');
this.queue.sort((a,b)=>a.at - b.at);
this.wake();
}
summary(){
if(!this.valid)return '';
const total=this.layers * this.experts;
const resident=this.resident.reduce((sum,bit)=>sum + bit,0);
let busiest=0;
for(let cell=1;cell<total;cell +=1)if(this.hits[cell]>this.hits[busiest])busiest=cell;
const kept = resident === total ? `All ${formatCount(total)} experts are in memory.` : `${formatCount(resident)} of ${formatCount(total)} experts (${formatShare(resident / total)}) are in memory.`;
const used = this.lastBeat.hits || this.lastBeat.reads ? ` Just now: ${plural(this.lastBeat.hits, 'use')} of an expert${resident === total ? '' : `, ${plural(this.lastBeat.reads, 'read')} from the disk`}.` : ' Nothing is computed at the moment.';
const most = this.hits[busiest] ? ` Busiest so far: layer ${Math.floor(busiest / this.experts)}, expert ${busiest % this.experts}, with ${plural(this.hits[busiest], 'use')}.` : '';
return kept + used + most;
}
restyle(){
const colour = (name) => themeColour(name).match(/[\d.]+/g).slice(0, 3).map(Number);
this.colours={back:colour('--panel-well'),absent:colour('--grid-absent'),resident:colour('--grid-resident'),glow:colour('--grid-glow'),flash:colour('--grid-flash')};
this.labelColour=themeColour('--text-soft');
this.paint();
}
layout(){
if(!this.valid)return;
const scale=Math.max(2,devicePixelRatio||1);
const available=Math.floor((this.canvas.parentElement.clientWidth - MARGIN_PX)* scale)- GUTTER_PX * scale;
if(available<20)return;
this.laidOutWidth=this.canvas.parentElement.clientWidth;
this.scale=scale;
this.plan=chooseLayout(this.layers,this.experts,available,this.heightMax()* scale);
const width=Math.round(this.plan.columns * this.plan.across);
this.edges=Array.from({length:this.plan.columns + 1},(_,column)=>Math.round(column * this.plan.across));
const height=this.plan.band * this.layers;
this.canvas.width=Math.round(width + GUTTER_PX * scale);
this.canvas.height=height;
this.canvas.style.width = `${this.canvas.width / scale}px`;
this.canvas.style.height = `${height / scale}px`;
this.image=new ImageData(width,height);
this.pixels=new Uint32Array(this.image.data.buffer);
this.restyle();
}
cellAt(x,y){
if(!this.plan)return -1;
const{across,down,rows,columns,band}=this.plan;
const column = Math.floor((x * this.scale - GUTTER_PX * this.scale) / across);
const layer = Math.floor((y * this.scale) / band);
const row = Math.floor((y * this.scale - layer * band) / down);
const expert=row * columns + column;
if(column<0||column>=columns||row>=rows||layer>=this.layers||expert>=this.experts)return -1;
return layer * this.experts + expert;
}
point(cell){
if(cell===this.pointed)return;
this.pointed=cell;
this.tell();
this.paint();
}
tell(){
const{pointed,tooltip}=this;
tooltip.hidden=pointed<0;
if(pointed<0)return;
const layer = Math.floor(pointed / this.experts);
const expert=pointed % this.experts;
const state=this.resident[pointed]?'in memory':'on the disk';
tooltip.textContent = `Layer ${layer}, expert ${expert}: ${state}, used ${plural(this.hits[pointed], 'time')}, read ${plural(this.reads[pointed], 'time')}`;
const{down,columns,band}=this.plan;
const x = (GUTTER_PX * this.scale + this.edges[expert % columns]) / this.scale;
const y = (layer * band + Math.floor(expert / columns) * down) / this.scale;
const room=this.canvas.parentElement.clientWidth - tooltip.offsetWidth;
tooltip.style.left = `${Math.max(0, Math.min(x - tooltip.offsetWidth / 2, room))}px`;
tooltip.style.top = `${y > tooltip.offsetHeight + 10 ? y - tooltip.offsetHeight - 8 : y + down / this.scale + 8}px`;
}
key(event){
const step={ArrowRight:1,ArrowLeft:-1,ArrowDown:this.experts,ArrowUp:-this.experts}[event.key];
if(!step||!this.valid)return;
event.preventDefault();
const next=this.pointed<0?0:this.pointed + step;
if(next>=0&&next<this.layers * this.experts)this.point(next);
}
wake(){
if(!this.frame)this.frame=requestAnimationFrame((now)=>this.step(now));
}
step(now){
this.frame=0;
if(!this.canvas.isConnected||!this.plan)return;
const passed=now - this.drawn;
if(passed<FRAME_MS){
this.wake();
return;
}
this.drawn=now;
const seconds = Math.min(passed / 1000, 0.5);
const cool = this.still.matches ? 0 : Math.exp(-seconds / GLOW_S);
const fade = this.still.matches ? 0 : Math.exp(-seconds / FLASH_S);
let alive=false;
for(let cell=0;cell<this.glow.length;cell +=1){
if(this.glow[cell]>COLD||this.flash[cell]>COLD)alive=true;
this.glow[cell] *=cool;
this.flash[cell] *=fade;
}
let due=0;
for(;due<this.queue.length&&this.queue[due].at<=now;due +=1){
const{cell,kind,strength}=this.queue[due];
const target=kind==='hits'?this.glow:this.flash;
target[cell]=Math.max(target[cell],kind==='hits'?strength:1);
}
this.queue.splice(0,due);
this.paint();
if(this.pointed>=0)this.tell();
if(this.queue.length||((alive||due)&&!this.still.matches))this.wake();
}
paint(){
if(!this.plan||!this.colours)return;
const{down,rows,columns,gap,band}=this.plan;
const{back,absent,resident,glow,flash}=this.colours;
const width=this.image.width;
this.pixels.fill(pack(back));
const inset=gap>1?1:0;
for(let layer=0;layer<this.layers;layer +=1){
for(let row=0;row<rows;row +=1){
const top=layer * band + row * down;
for(let column=0;column<columns;column +=1){
const expert=row * columns + column;
if(expert>=this.experts)break;
const index=layer * this.experts + expert;
let colour=this.resident[index]?resident:absent;
const heat=this.glow[index];
const spark=this.flash[index];
if(heat>COLD)colour=mix(colour,glow,heat);
if(spark>COLD)colour=mix(colour,flash,spark);
const left=this.edges[column];
const wide=this.edges[column + 1] - left;
if(gap>1&&(heat>0.2||spark>0.2)){
fill(this.pixels,width,left,top,wide - 1,down - 1,pack(mix(back,colour,0.35 * Math.max(heat,spark))));
}
fill(this.pixels,width,left + inset,top + inset,wide - gap,down - gap,pack(colour));
if(down - gap>=5)clipCorners(this.pixels,width,left + inset,top + inset,wide - gap,down - gap,pack(mix(back,colour,0.35)));
}
}
}
const context=this.canvas.getContext('2d');
context.clearRect(0,0,this.canvas.width,this.canvas.height);
context.putImageData(this.image,Math.round(GUTTER_PX * this.scale),0);
this.labels(context);
if(this.pointed>=0)this.outline(context);
}
labels(context){
const{band}=this.plan;
context.fillStyle=this.labelColour;
context.font = `${10 * this.scale}px ui-monospace, monospace`;
context.textAlign='right';
context.textBaseline='middle';
const every = Math.max(1, Math.ceil((13 * this.scale) / band));
for(let layer=0;layer<this.layers;layer +=every){
const y = Math.max(6 * this.scale, layer * band + (band * Math.min(1, every)) / 2);
context.fillText(String(layer),(GUTTER_PX - 6)* this.scale,Math.min(y,this.canvas.height - 5 * this.scale));
}
}
outline(context){
const{across,down,columns,band}=this.plan;
const layer = Math.floor(this.pointed / this.experts);
const expert=this.pointed % this.experts;
context.strokeStyle=this.labelColour;
context.lineWidth=Math.max(1,this.scale);
context.strokeRect(GUTTER_PX * this.scale + this.edges[expert % columns] - 0.5, layer * band + Math.floor(expert / columns) * down - 0.5, across, down);
}
}
function mix(from,to,share){
return [from[0] +(to[0] - from[0])* share,from[1] +(to[1] - from[1])* share,from[2] +(to[2] - from[2])* share];
}
function pack([red,green,blue]){
return((255<<24)|(blue<<16)|(green<<8)|red)>>>0;
}
function fill(pixels,width,left,top,across,down,colour){
for(let y=top;y<top + down;y +=1)pixels.fill(colour,y * width + left,y * width + left + across);
}
function clipCorners(pixels,width,left,top,across,down,colour){
for(const [x,y] of [[0,0],[across - 1,0],[0,down - 1],[across - 1,down - 1]])pixels[(top + y)* width + left + x]=colour;
}

// ---- spark.js
const WINDOW_S=60;
class Sparkline{
constructor(canvas,property){
this.canvas=canvas;
this.property=property;
this.points=[];
this.restyle();
}
restyle(){
this.colour=themeColour(this.property);
this.draw();
}
push(time,value){
if(this.points.length&&time<this.points.at(-1).time)this.points=[];
this.points.push({time,value});
while(this.points.length>2&&this.points[1].time<time - WINDOW_S)this.points.shift();
this.draw();
}
peak(){
return this.points.reduce((most,point)=>Math.max(most,point.value),0);
}
draw(){
const{canvas,points}=this;
const scale=devicePixelRatio||1;
const width=Math.round(canvas.clientWidth * scale);
const height=Math.round(canvas.clientHeight * scale);
if(width===0||height===0)return;
if(canvas.width !==width||canvas.height !==height){
canvas.width=width;
canvas.height=height;
}
const context=canvas.getContext('2d');
context.clearRect(0,0,width,height);
const stroke=1.5 * scale;
const base=height - stroke;
context.fillStyle=this.colour;
context.globalAlpha=0.25;
context.fillRect(0,height - scale,width,scale);
context.globalAlpha=1;
if(points.length<2)return;
const last=points.at(-1).time;
const most=Math.max(this.peak(),1e-9);
const x = (time) => width * (1 - (last - time) / WINDOW_S);
const y = (value) => base - (value / most) * (base - stroke * 1.5);
context.beginPath();
points.forEach((point,index)=>(index?context.lineTo(x(point.time),y(point.value)):context.moveTo(x(point.time),y(point.value))));
context.strokeStyle=this.colour;
context.lineWidth=stroke;
context.lineJoin='round';
context.stroke();
context.lineTo(x(last),height);
context.lineTo(x(points[0].time),height);
context.closePath();
const fade=context.createLinearGradient(0,0,0,height);
fade.addColorStop(0,this.colour.replace('rgb(','rgba(').replace(')',', 0.35)'));
fade.addColorStop(1,this.colour.replace('rgb(','rgba(').replace(')',', 0)'));
context.fillStyle=fade;
context.fill();
}
}

// ---- panel.js
const PLAN_COLOURS=8;
const SUMMARY_INTERVAL_MS=2_000;
const DRAFTS_WORDS='Tokens are guessed by something cheap, and the model checks several guesses in one pass. Answers are the same as without; guesses that do not pay are left out.';
class Panel{
constructor(body,status){
this.body=body;
this.status=status;
this.hello=null;
this.summaryAt=0;
this.smoothedHits=null;
this.build();
this.setState('off');
}
build(){
const rate=(name,title,caption,property)=>{
const value=make('span',{class:'figure'},'0.0');
const peak=make('span',{class:'soft'},'');
const canvas = make('canvas', { class: 'spark', role: 'img', 'aria-label': `${title} over the last minute` });
this[name]={value,peak,canvas,property};
return make('div', { class: 'rate' }, make('h3', {}, title), make('p', { class: 'big' }, value, make('span', { class: 'unit' }, ' tok/s')), canvas, make('p', { class: 'caption' }, caption, peak));
};
this.seats=make('div',{class:'seats','aria-hidden':'true'});
this.requests=make('p',{class:'caption'},'');
this.plan=make('div',{class:'plan-bar'});
this.planNow=make('div',{class:'plan-now','aria-hidden':'true'});
this.planText=make('p',{class:'caption'},'');
this.legend=make('ul',{class:'legend'});
this.gridCanvas=make('canvas',{class:'grid',tabindex:'0',role:'img','aria-label':'Expert grid','aria-describedby':'grid-summary'});
this.tooltip=make('div',{class:'tooltip',role:'status',hidden:true});
this.gridHolder=make('div',{class:'grid-holder'},this.gridCanvas,this.tooltip);
this.gridCaption=make('p',{class:'caption'},'');
this.gridSummary=make('p',{class:'caption strong',id:'grid-summary'},'');
this.gridKey=make('p',{class:'grid-key'});
this.gridHome=make('div',{},this.gridHolder);
this.gridSection=make('section',{class:'card'},
make('div',{class:'card-head'},make('h3',{},'Experts'),iconButton('expand','Enlarge the expert grid',()=>this.enlarge())),
this.gridHome,this.gridKey,this.gridSummary,this.gridCaption);
this.disk=meter('disk','SSD','--grid-flash');
this.hits=meter('hits','Cache hits','--accent');
this.pool=meter('pool','Keys and values','--accent-2');
this.prefix=make('p',{class:'caption'},'');
this.drafts=meter('drafts','Drafts','--accent');
this.draftsCard=make('section',{class:'card',hidden:true,title:DRAFTS_WORDS},this.drafts.element);
this.body.replaceChildren(
make('section',{class:'card rates','aria-label':'Speed'},
rate('decode','Writing','Tokens of answers, all requests together.','--accent'),
rate('prefill','Reading','Tokens of prompts that were not cached.','--accent-2')),
make('section',{class:'card'},make('h3',{},'Requests'),this.seats,this.requests),
this.gridSection,
make('section',{class:'card','aria-label':'Disk and cache'},this.disk.element,this.hits.element),
this.draftsCard,
make('section',{class:'card'},make('h3',{},'Memory plan'),make('div',{class:'plan-frame'},this.plan,this.planNow),this.planText,this.legend),
make('section',{class:'card'},this.pool.element,this.prefix),
);
this.decode.spark=new Sparkline(this.decode.canvas,'--accent');
this.prefill.spark=new Sparkline(this.prefill.canvas,'--accent-2');
this.grid=new ExpertGrid(this.gridCanvas,this.tooltip,()=>(this.gridHolder.closest('dialog')?innerHeight * 0.66:380));
}
setState(state){
this.status.dataset.state=state;
this.status.textContent={off:'paused',waiting:'connecting…',on:'live'}[state];
this.body.classList.toggle('stale',state !=='on'&&this.hello !==null);
}
restyle(){
this.decode.spark.restyle();
this.prefill.spark.restyle();
this.grid.restyle();
}
setHello(hello){
const before=this.hello;
this.hello=hello;
const{experts}=hello;
this.gridSection.hidden=!experts;
if(experts&&(!before?.experts||before.experts.layers !==experts.layers||before.experts.experts !==experts.experts))this.grid.shape(experts.layers,experts.experts);
const streaming=hello.mode==='streaming';
this.disk.element.hidden=!streaming;
this.hits.element.hidden=!streaming;
this.disk.element.parentElement.hidden=!streaming;
this.gridKey.replaceChildren(...[
['resident','in memory'],streaming&&['absent','on the disk'],['glow','used'],streaming&&['flash','just read'],
].filter(Boolean).map(([kind, text]) => make('span', {}, make('i', { class: `swatch ${kind}` }), text)));
if(experts){
this.gridCaption.textContent = `Each numbered band is one of ${experts.layers} layers, each square one of its ${experts.experts} experts. A token visits every layer and uses ${experts.experts_per_token} experts there: they light up. ${
streaming ? `${formatCount(experts.slots)} of ${formatCount(experts.layers * experts.experts)} fit in memory; the others are read from the disk when they are wanted.` : 'This model fits: all its experts stay in memory.'}`;
}
this.drawPlan(hello.plan);
this.drawDrafts({});
this.drawRequests({});
this.drawDisk({});
}
beat(beat){
if(!this.hello)return;
for(const [part,value] of [[this.decode,beat.decode_tok_s],[this.prefill,beat.prefill_tok_s]]){
const rate=Number.isFinite(value)?value:0;
part.value.textContent=formatRate(rate);
part.spark.push(beat.t,rate);
const peak=part.spark.peak();
part.peak.textContent = peak > 0 ? ` Peak of the minute: ${formatRate(peak)}.` : '';
}
this.drawDrafts(beat);
this.drawRequests(beat);
this.grid.beat(beat.grid);
this.drawDisk(beat);
this.drawPool(beat);
this.drawNow(beat.memory_bytes);
const now=performance.now();
if(now - this.summaryAt>SUMMARY_INTERVAL_MS){
this.summaryAt=now;
this.gridSummary.textContent=this.grid.summary();
}
}
drawDrafts({speculation}){
this.draftsCard.hidden=!speculation;
if(speculation)this.drafts.set(speculation.acceptance,formatDrafts(speculation),'of the tokens guessed ahead were what the model said, since the server started.');
}
drawRequests({active=0,prefilling=0,queued=0,limit=0}){
const parallel=Math.min(64,this.hello.parallel||active||1);
const kinds=Array.from({length:parallel},(_,index)=>(index<active - prefilling?'writing':index<active?'reading':'free'));
if(this.seats.childElementCount !==parallel)this.seats.replaceChildren(...kinds.map(()=>make('i')));
kinds.forEach((kind,index)=>{
this.seats.children[index].className=kind;
});
const writing=Math.max(0,active - prefilling);
this.requests.textContent=active||queued
? `${plural(writing, 'request')} writing, ${formatCount(prefilling)} reading ${prefilling === 1 ? 'its prompt' : 'their prompts'}, ${formatCount(queued)} waiting${limit ? ` (at most ${formatCount(limit)})` : ''}.`
: `Idle. ${plural(this.hello.parallel || 1, 'request')} can run at once, batched token by token${limit ? `; ${formatCount(limit)} more may wait` : ''}.`;
}
drawDisk(beat){
if(this.hello.mode !=='streaming')return;
const read=beat.read_bytes_s??0;
const ceiling=beat.disk_bytes_s;
this.disk.set(ceiling ? read / ceiling : 0, `${formatBytes(read)}/s`, ceiling ? `of the ${formatBytes(ceiling)}/s this disk was measured at: experts that were not in memory.` : 'Experts that were not in memory. The disk has not been measured yet.');
if(Number.isFinite(beat.hit_rate))this.smoothedHits=this.smoothedHits===null?beat.hit_rate:this.smoothedHits * 0.8 + beat.hit_rate * 0.2;
this.hits.set(this.smoothedHits??0,this.smoothedHits===null?'–':formatShare(this.smoothedHits),'of the experts wanted were in memory already (over the last second or so).');
}
drawPool({pool,cache}){
if(pool?.pages){
const used=pool.pages - pool.free;
this.pool.set(used / pool.pages, `${formatCount(used)} / ${formatCount(pool.pages)} pages`, 'What running answers remember, in one pool for all of them.');
}
this.prefix.textContent = cache ? (cache.entries ? `Prefix cache: ${plural(cache.entries, 'beginning')} with ${plural(cache.tokens, 'token')}. A prompt that begins alike skips them.` : 'Prefix cache: empty. The next turn of a chat will find the last one here.') : '';
}
drawPlan(plan){
const rows=Array.isArray(plan?.rows)?plan.rows.filter((row)=>row.bytes>0):[];
const whole=Math.max(plan?.budget_bytes||0,plan?.total_bytes||0,1);
this.planWhole=whole;
this.plan.replaceChildren(...rows.map((row,index)=>{
const part = make('i', { class: `plan-part colour-${(index % PLAN_COLOURS) + 1}`, title: `${row.name}: ${formatBytes(row.bytes)}` });
part.style.flexGrow = String(row.bytes / whole);
return part;
}));
const free=whole -(plan?.total_bytes||0);
const rest = make('i', { class: 'plan-part plan-free', title: `free: ${formatBytes(free)}` });
rest.style.flexGrow = String(Math.max(0, free) / whole);
this.plan.append(rest);
this.legend.replaceChildren(...rows.map((row,index)=>
make('li', {}, make('i', { class: `swatch colour-${(index % PLAN_COLOURS) + 1}` }), make('span', { class: 'name' }, row.name, row.note ? make('small', {}, row.note) : null), make('span', { class: 'amount' }, formatBytes(row.bytes)))));
this.planWords = plan?.budget_bytes ? `${formatBytes(plan.total_bytes)} of ${formatBytes(plan.budget_bytes)}, fixed before the first token` : `${formatBytes(plan?.total_bytes)} in all`;
this.planText.textContent = `${this.planWords}.`;
}
drawNow(bytes){
this.planNow.hidden=!Number.isFinite(bytes);
if(!Number.isFinite(bytes))return;
this.planNow.style.left = `${Math.min(100, (bytes / this.planWhole) * 100)}%`;
this.planText.textContent = `${this.planWords}. In use now: ${formatBytes(bytes)} (the line).`;
}
enlarge(){
const dialog=byId('grid-dialog');
byId('grid-place').replaceChildren(this.gridHolder);
dialog.showModal();
this.grid.layout();
dialog.addEventListener('close',()=>{
this.gridHome.append(this.gridHolder);
this.grid.layout();
},{once:true});
}
}
function meter(id,title,property){
const value=make('span',{class:'figure'},'–');
const fill=make('i',{});
fill.style.background = `var(${property})`;
const caption=make('p',{class:'caption'},'');
const bar = make('div', { class: 'meter', role: 'meter', 'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-valuenow': '0', 'aria-labelledby': `meter-${id}` }, fill);
return{
element: make('div', { class: 'metered' }, make('div', { class: 'card-head' }, make('h3', { id: `meter-${id}` }, title), value), bar, caption),
set(share,text,words){
const percent=Math.round(Math.max(0,Math.min(1,share))* 100);
fill.style.width = `${percent}%`;
bar.setAttribute('aria-valuenow',String(percent));
bar.setAttribute('aria-valuetext',text);
value.textContent=text;
caption.textContent=words;
},
};
}

// ---- sidebar.js
class Sidebar{
constructor({library,open,current,busy,removed,renamed}){
Object.assign(this,{library,open,current,busy,removed,renamed});
this.list=byId('list');
this.search=byId('search');
this.search.addEventListener('input',()=>this.render());
this.search.addEventListener('keydown',(event)=>{
if(composing(event))return;
if(event.key==='Enter'||event.key==='ArrowDown'){
event.preventDefault();
this.items()[0]?.focus();
}else if(event.key==='Escape'&&this.search.value){
event.stopPropagation();
this.search.value='';
this.render();
}
});
this.list.addEventListener('keydown',(event)=>this.key(event));
}
items(){
return [...this.list.querySelectorAll('.open')];
}
render(){
if(this.renaming)return;
const focused=this.list.contains(document.activeElement)?document.activeElement.closest('li')?.dataset.id:null;
const found=this.library.list().filter((conversation)=>matches(conversation,this.search.value));
const groups=new Map();
for(const conversation of found){
const name=dayGroup(conversation.updated);
if(!groups.has(name))groups.set(name,[]);
groups.get(name).push(conversation);
}
this.list.replaceChildren(...(found.length
?[...groups].map(([name,members])=>make('section',{},make('h2',{},name),make('ul',{},...members.map((member)=>this.item(member)))))
:[make('p',{class:'soft none'},this.search.value?'Nothing found.':'Conversations will be listed here.')]));
if (focused) this.list.querySelector(`[data-id="${CSS.escape(focused)}"] .open`)?.focus();
}
item(conversation){
const isOpen=this.current()===conversation.id;
const title=conversation.title||'Untitled';
return make('li',{'data-id':conversation.id,class:isOpen?'current':null},
make('button',{type:'button',class:'open','aria-current':isOpen?'page':null,onclick:()=>this.open(conversation.id),ondblclick:()=>this.rename(conversation.id)},
make('span',{dir:'auto'},title),this.busy(conversation.id)?make('i',{class:'working',role:'img','aria-label':'being answered'}):null),
make('span',{class:'row-actions'},
iconButton('edit', `Rename ${title}`, () => this.rename(conversation.id)),
iconButton('download', `Export ${title}`, () => this.exportOne(conversation)),
iconButton('trash', `Delete ${title}`, () => this.remove(conversation.id))));
}
key(event){
const item=event.target.closest('li');
if(!item||event.target.tagName==='INPUT')return;
if(event.key==='ArrowDown'||event.key==='ArrowUp'){
event.preventDefault();
const items=this.items();
const at=items.indexOf(item.querySelector('.open'));
items[at +(event.key==='ArrowDown'?1:-1)]?.focus();
}else if(event.key==='F2')this.rename(item.dataset.id);
else if(event.key==='Delete'&&event.target.classList.contains('open'))this.remove(item.dataset.id);
}
rename(id){
const conversation=this.library.get(id);
const item = this.list.querySelector(`[data-id="${CSS.escape(id)}"]`);
if(!conversation||!item)return;
this.renaming=true;
const field=make('input',{type:'text',class:'rename','aria-label':'New title',maxlength:'200',dir:'auto'});
field.value=conversation.title;
const end=(keep,focus)=>{
if(!this.renaming)return;
this.renaming=false;
const title=field.value.trim();
if(keep&&title&&title !==conversation.title){
conversation.title=title;
conversation.renamed=true;
this.library.save(conversation);
this.renamed(conversation);
}
this.render();
if (focus) this.list.querySelector(`[data-id="${CSS.escape(id)}"] .open`)?.focus();
};
field.addEventListener('keydown',(event)=>{
if(composing(event))return;
if(event.key==='Enter')end(true,true);
else if(event.key==='Escape'){
event.stopPropagation();
end(false,true);
}
});
field.addEventListener('blur',()=>end(true,false));
item.replaceChildren(field);
field.focus();
field.select();
}
async remove(id){
const conversation=this.library.get(id);
if(!conversation)return;
const items=this.items();
const at=items.findIndex((item)=>item.closest('li').dataset.id===id);
await this.library.remove(id);
this.removed(id);
this.render();
(this.items()[Math.min(at,items.length - 2)]??byId('new-chat')).focus();
toast(`Deleted “${conversation.title || 'Untitled'}”.`, { action: 'Undo', onaction: async () => {
await this.library.save(conversation);
this.render();
this.open(id);
}});
}
exportOne(conversation){
const name = (conversation.title || 'conversation').toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-+|-+$/g, '').slice(0, 50) || 'conversation';
download(`millstream-${name}.json`, this.library.exported(conversation.id));
}
exportAll(){
const count=this.library.list().length;
if(!count){
toast('There is nothing to export yet.');
return;
}
download(`millstream-conversations-${new Date().toISOString().slice(0, 10)}.json`, this.library.exported());
}
async importFile(file){
try{
if(file.size>200e6)throw new Error('the file is larger than 200 MB');
const{added,skipped}=await this.library.import(await file.text());
this.render();
toast(`Imported ${added.length} of ${added.length + skipped}${skipped ? '; the others were here already' : ''}.`);
if(added.length)this.open(added[0].id);
}catch(error){
toast(`Nothing was imported: ${error.message}.`);
}
}
}

// ---- main.js
const PANEL_BESIDE=matchMedia('(min-width: 1180px)');
const SIDEBAR_BESIDE=matchMedia('(min-width: 820px)');
const DARK=matchMedia('(prefers-color-scheme: dark)');
class Page{
constructor(){
this.settings=loadSettings();
this.connection=new Connection(()=>this.showConnection());
this.library=new Library({
changed:(id)=>this.otherTab(id),
failed:(text)=>toast(text,{lasting:true,action:'Export all',onaction:()=>this.sidebar.exportAll()}),
busy:(id)=>this.chat.generations.has(id),
});
this.chat=new Chat({
library:this.library,
settings:this.settings,
connection:this.connection,
opened:(conversation)=>this.opened(conversation),
changed:()=>this.sidebar.render(),
openSettings:()=>this.openSettings(),
askKey:()=>this.askKey(),
});
this.sidebar=new Sidebar({
library:this.library,
open:(id)=>this.open(id),
current:()=>this.chat.conversation?.id??null,
busy:(id)=>this.chat.generations.has(id),
removed:(id)=>this.removed(id),
renamed:(conversation)=>this.opened(conversation),
});
this.panel=new Panel(byId('panel-body'),byId('live-state'));
this.live=new LiveStream({
hello:(value)=>this.panel.setHello(value),
beat:(value)=>this.panel.beat(value),
state:(state)=>this.panel.setState(state),
});
this.panelOpen=false;
this.sidebarOpen=false;
}
async start(){
this.wire();
this.applyTheme();
this.showPanel(this.settings.panel??PANEL_BESIDE.matches);
if(!PANEL_BESIDE.matches)this.showPanel(false);
this.showSidebar(false);
this.connection.check();
const persistent=await this.library.open();
if(!persistent)toast('This browser keeps nothing for this page, so conversations last as long as the tab.',{lasting:true});
this.fromAddress();
document.documentElement.dataset.ready='true';
}
wire(){
const click=(id,name,work)=>{
const button=byId(id);
if(name)button.prepend(icon(name));
if(button.hasAttribute('aria-label'))button.title=button.getAttribute('aria-label');
button.addEventListener('click',work);
};
click('skip',null,(event)=>{
event.preventDefault();
byId('input').focus();
});
click('new-chat','plus',()=>this.newChat());
click('sidebar-open','menu',()=>this.showSidebar(true));
click('sidebar-close','close',()=>this.closeDrawers());
click('import','upload',()=>byId('import-file').click());
click('export','download',()=>this.sidebar.exportAll());
click('shortcuts-open','keyboard',()=>openShortcuts(this.settings));
click('theme',null,()=>this.nextTheme());
click('settings-open','sliders',()=>this.openSettings());
click('panel-toggle','pulse',()=>this.togglePanel());
click('panel-close','close',()=>this.togglePanel());
click('scrim',null,()=>this.closeDrawers());
click('jump','down',()=>{});
click('send','send',()=>{});
click('stop','stop',()=>{});
click('grid-close','close',()=>byId('grid-dialog').close());
const file=byId('import-file');
file.addEventListener('change',async()=>{
if(file.files[0])await this.sidebar.importFile(file.files[0]);
file.value='';
});
for(const id of ['shortcuts','grid-dialog'])closeBeside(byId(id));
followSettings(this.settings,()=>this.applyTheme());
DARK.addEventListener('change',()=>this.restyle());
PANEL_BESIDE.addEventListener('change',()=>this.showPanel(PANEL_BESIDE.matches&&(this.settings.panel??true)));
SIDEBAR_BESIDE.addEventListener('change',()=>this.showSidebar(false));
addEventListener('hashchange',()=>this.fromAddress());
addEventListener('keydown',(event)=>this.key(event));
addEventListener('beforeunload',(event)=>{
if(this.chat.generations.size)event.preventDefault();
});
addEventListener('pagehide',()=>{
for(const id of this.chat.generations.keys())this.library.tell(id,false);
});
}
fromAddress(){
const id=location.hash.startsWith('#c=')?location.hash.slice(3):null;
if((this.chat.conversation?.id??null)===id&&document.documentElement.dataset.ready)return;
const conversation=id?this.library.get(id):null;
if(!conversation)history.replaceState(null,'',location.pathname + location.search);
this.chat.open(conversation,SIDEBAR_BESIDE.matches);
}
open(id){
const conversation=this.library.get(id);
if(!conversation)return;
this.closeDrawers();
this.chat.open(conversation,SIDEBAR_BESIDE.matches);
}
opened(conversation){
const current=this.chat.conversation;
if(conversation&&current&&conversation.id !==current.id)return;
const title=current?.title||'New chat';
byId('title').textContent=title;
document.title = current ? `${title} · Millstream` : 'Millstream';
const hash = current ? `#c=${current.id}` : '';
if(location.hash !==hash)history.pushState(null,'',hash||location.pathname + location.search);
this.sidebar?.render();
}
newChat(){
this.closeDrawers();
this.chat.open(null);
}
removed(id){
this.chat.generations.get(id)?.stop();
if(this.chat.conversation?.id===id)this.chat.open(null,false);
}
neighbour(step,focus){
const list=this.library.list();
if(!list.length)return;
const at=list.findIndex((conversation)=>conversation.id===this.chat.conversation?.id);
const next=at<0?list[step>0?0:list.length - 1]:list[at + step];
if(next)this.chat.open(next,focus);
}
openSettings(){
openSettings(this.settings,this.chat.conversation,()=>{
if(this.chat.conversation)this.library.save(this.chat.conversation);
toast('Settings saved.');
});
}
otherTab(id){
if(!this.library.get(id))this.removed(id);
else this.chat.changedElsewhere(id);
if(this.chat.conversation?.id===id)this.opened(this.chat.conversation);
else this.sidebar.render();
}
showConnection(){
const{state,model,health}=this.connection;
const mode=health?.mode==='streaming'?'experts from the disk':health?.mode==='resident'?'all in memory':'';
byId('model').textContent=state==='ready'?[model,mode].filter(Boolean).join(' · '):'';
if(state==='loading')banner('The model is being loaded. This page continues by itself.',{kind:'info'});
else if(state==='gone')banner('The server cannot be reached. Trying again…',{action:'Try now',onaction:()=>this.connection.check()});
else if(state==='locked')banner('This server asks for a key.',{action:'Enter the key',onaction:()=>this.askKey()});
else banner(null);
if(state==='locked')this.askKey();
if(state==='ready')this.chat.controls();
this.updateLive();
}
askKey(){
askKey(async(key)=>{
setApiKey(key);
await this.connection.check();
return this.connection.state !=='locked';
});
}
updateLive(){
this.live.want(this.panelOpen&&this.connection.state==='ready');
}
panelCovers(){
return this.panelOpen&&!PANEL_BESIDE.matches;
}
togglePanel(){
const leaving=this.panelCovers()||byId('panel').contains(document.activeElement);
this.showPanel(!this.panelOpen);
if(PANEL_BESIDE.matches){
this.settings.panel=this.panelOpen;
saveSettings(this.settings);
}else if(this.panelOpen){
this.showSidebar(false);
byId('panel-close').focus();
}
if(leaving)byId('panel-toggle').focus();
}
showPanel(open){
this.panelOpen=open;
byId('app').classList.toggle('with-panel',open);
byId('panel').inert=!open;
byId('panel-toggle').setAttribute('aria-expanded',String(open));
this.showScrim();
this.updateLive();
if(open)this.panel.restyle();
}
showSidebar(open){
this.sidebarOpen=open&&!SIDEBAR_BESIDE.matches;
byId('app').classList.toggle('with-sidebar',this.sidebarOpen);
this.showScrim();
if(this.sidebarOpen)byId('sidebar-close').focus();
}
showScrim(){
const covered=this.sidebarOpen||this.panelCovers();
byId('scrim').hidden=!covered;
byId('main').inert=covered;
byId('sidebar').inert=this.panelCovers()||(!this.sidebarOpen&&!SIDEBAR_BESIDE.matches);
}
closeDrawers(){
const any=this.sidebarOpen||this.panelCovers();
if(this.sidebarOpen){
this.showSidebar(false);
byId('sidebar-open').focus();
}
if(this.panelCovers()){
this.showPanel(false);
byId('panel-toggle').focus();
}
return any;
}
nextTheme(){
const order=['auto','light','dark'];
this.settings.theme=order[(order.indexOf(this.settings.theme)+ 1)% order.length];
saveSettings(this.settings);
this.applyTheme();
}
applyTheme(){
const{theme}=this.settings;
if(theme==='auto')delete document.documentElement.dataset.theme;
else document.documentElement.dataset.theme=theme;
const button=byId('theme');
button.replaceChildren(icon({auto:'half',light:'sun',dark:'moon'}[theme]));
const label={auto:'Colours: as the system',light:'Colours: light',dark:'Colours: dark'}[theme];
button.setAttribute('aria-label',label);
button.title=label;
this.restyle();
}
restyle(){
this.panel.restyle();
}
key(event){
if(event.defaultPrevented||composing(event))return;
if(document.querySelector('dialog[open]'))return;
const run=(work)=>{
event.preventDefault();
work();
};
if(event.key==='Escape'){
if(this.closeDrawers()||this.chat.stop())event.preventDefault();
return;
}
if((event.ctrlKey||event.metaKey)&&!event.altKey&&!event.shiftKey&&event.code==='KeyK'){
run(()=>{
this.closeDrawers();
this.showSidebar(true);
byId('search').focus();
});
return;
}
const field=event.target.closest?.('input, textarea, select');
if(event.altKey&&!event.ctrlKey&&!event.metaKey){
if(field&&event.code.startsWith('Key')&&event.key.toUpperCase()!==event.code.slice(3))return;
const work={
KeyN:()=>this.newChat(),KeyP:()=>this.togglePanel(),KeyS:()=>this.openSettings(),KeyR:()=>this.chat.regenerateLast(),
ArrowUp:()=>this.neighbour(-1,true),ArrowDown:()=>this.neighbour(1,true),
}[event.code];
if(work)run(work);
return;
}
if(event.ctrlKey||event.metaKey||field)return;
if(event.key==='?'){
run(()=>openShortcuts(this.settings));
return;
}
if(!this.settings.singleKeys)return;
const work={
'/': () => byId('input').focus(), n: () => this.newChat(), j: () => this.neighbour(1, false), k: () => this.neighbour(-1, false),
p:()=>this.togglePanel(),s:()=>this.openSettings(),t:()=>this.nextTheme(),r:()=>this.chat.regenerateLast(),
}[event.key];
if(work)run(work);
}
}
new Page().start();
