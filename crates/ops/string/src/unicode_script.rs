//! UnicodeScript.
//!
//! `unicode-script` has the property without a dependency; its data may be of a later version of
//! Unicode than TensorFlow's, which matters for characters that the later version adds.

use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::Tensor;
use unicode_script::{Script, UnicodeScript};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new("UnicodeScript", "input: int32 -> output: int32")
    .shape(shapes::unchanged)
    .kernel(|_| {
        let codes = codes();
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let input = ctx.input(0)?;
            let scripts = input.slice::<i32>()?.iter().map(|&v| match v {
                0..=0x10_ffff => u32::try_from(v)
                    .ok()
                    .and_then(char::from_u32)
                    .map_or(UNKNOWN, |c| {
                        codes.get(c.script() as usize).copied().unwrap_or(UNKNOWN)
                    }),
                _ => -1,
            });
            let scripts: Vec<i32> = scripts.collect();
            ctx.set_output(0, Tensor::from_slice(input.shape().clone(), &scripts)?)
        }))
    })];

/// ICU's number of "unknown script".
const UNKNOWN: i32 = 103;

/// Returns ICU's numbers, indexed by `Script`.
fn codes() -> [i32; 256] {
    let mut codes = [UNKNOWN; 256];
    for entry in CODES.split_whitespace() {
        let (name, number) = entry.split_once('=').unwrap_or((entry, ""));
        let slot = Script::from_short_name(name).and_then(|s| codes.get_mut(s as usize));
        if let (Some(slot), Ok(number)) = (slot, number.parse()) {
            *slot = number;
        }
    }
    codes
}

/// ICU's numbers (`UScriptCode`) of scripts by ISO 15924 name; those that TensorFlow's version of ICU
/// does not know count as unknown.
const CODES: &str = "\
    Zyyy=0 Zinh=1 Arab=2 Armn=3 Beng=4 Bopo=5 Cher=6 Copt=7 Cyrl=8 Dsrt=9 Deva=10 Ethi=11 \
    Geor=12 Goth=13 Grek=14 Gujr=15 Guru=16 Hani=17 Hang=18 Hebr=19 Hira=20 Knda=21 Kana=22 \
    Khmr=23 Laoo=24 Latn=25 Mlym=26 Mong=27 Mymr=28 Ogam=29 Ital=30 Orya=31 Runr=32 Sinh=33 \
    Syrc=34 Taml=35 Telu=36 Thaa=37 Thai=38 Tibt=39 Cans=40 Yiii=41 Tglg=42 Hano=43 Buhd=44 \
    Tagb=45 Brai=46 Cprt=47 Limb=48 Linb=49 Osma=50 Shaw=51 Tale=52 Ugar=53 Bugi=55 Glag=56 \
    Khar=57 Sylo=58 Talu=59 Tfng=60 Xpeo=61 Bali=62 Batk=63 Brah=65 Cham=66 Egyp=71 Hmng=75 \
    Hung=76 Java=78 Kali=79 Lepc=82 Lina=83 Mand=84 Mero=86 Nkoo=87 Orkh=88 Perm=89 Phag=90 \
    Phnx=91 Plrd=92 Vaii=99 Xsux=101 Cari=104 Lana=106 Lyci=107 Lydi=108 Olck=109 Rjng=110 \
    Saur=111 Sgnw=112 Sund=113 Mtei=115 Armi=116 Avst=117 Cakm=118 Kthi=120 Mani=121 Phli=122 \
    Phlp=123 Prti=125 Samr=126 Tavt=127 Bamu=130 Lisu=131 Sarb=133 Bass=134 Dupl=135 Elba=136 \
    Gran=137 Mend=140 Merc=141 Narb=142 Nbat=143 Palm=144 Sind=145 Wara=146 Mroo=149 Nshu=150 \
    Shrd=151 Sora=152 Takr=153 Tang=154 Hluw=156 Khoj=157 Tirh=158 Aghb=159 Mahj=160 Ahom=161 \
    Hatr=162 Modi=163 Mult=164 Pauc=165 Sidd=166 Adlm=167 Bhks=168 Marc=169 Newa=170 Osge=171 \
    Gonm=175 Soyo=176 Zanb=177 Dogr=178 Gong=179 Maka=180 Medf=181 Rohg=182 Sogd=183 Sogo=184 \
    Elym=185 Hmnp=186 Nand=187 Wcho=188 Chrs=189 Diak=190 Kits=191 Yezi=192";
